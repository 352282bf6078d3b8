# The sources of matmul/: the files that kernels.inc names get the flags of its ISA column.
set(matmul_sources matmul/choose.cc matmul/layout.cc matmul/matmul.cc matmul/pack.cc
    matmul/cuda_matmul.cc matmul/cuda_pack.cc matmul/cuda_tiles.cc matmul/cuda_w8a8.cc
    matmul/prepare.cc matmul/avx2_prepare.cc)
set(matmul_tests matmul/cuda_test.cc matmul/cuda_tiles_test.cc matmul/cuda_few_test.cc matmul/rows_test.cc matmul/choose_test.cc matmul/matmul_test.cc)

set(kernel_flags_kReference "")
set(kernel_flags_kAvx2 -O2 -mavx2 -mfma -mf16c)
set(kernel_flags_kAvx512 -O2 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
    -mavx512vnni)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # its own avx512 headers read "undefined" registers
  list(APPEND kernel_flags_kAvx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# Instrumented, one of these files takes minutes to compile; what surrounds them is watched.
list(APPEND kernel_flags_kAvx2 -fno-sanitize=all)
list(APPEND kernel_flags_kAvx512 -fno-sanitize=all)

set(list ${CMAKE_CURRENT_SOURCE_DIR}/matmul/kernels.inc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
file(STRINGS ${list} rows REGEX "^KERNEL\\(")
foreach(row ${rows})
  string(REGEX REPLACE "^KERNEL\\([^,]*,[^,]*, *([^,]*), *([^,]*),.*" "\\1;\\2" columns "${row}")
  list(GET columns 0 file)
  list(GET columns 1 isa)
  list(APPEND matmul_sources matmul/${file}.cc)
  set_source_files_properties(matmul/${file}.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_${isa}}")
endforeach()
set_source_files_properties(matmul/avx2_prepare.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx2}")
list(REMOVE_DUPLICATES matmul_sources)
