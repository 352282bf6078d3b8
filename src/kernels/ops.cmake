# The operations beside matmul: each folder has NAME.cc, reference.cc, avx2.cc, avx512.cc and
# NAME_test.cc. The flags of the last two are those of matmul.cmake.
set(ops_sources ops.cc attention/kv_cache.cc)
set(ops_tests)
foreach(op activation attention norm rope)
  list(APPEND ops_sources ${op}/${op}.cc ${op}/reference.cc ${op}/avx2.cc ${op}/avx512.cc)
  list(APPEND ops_tests ${op}/${op}_test.cc)
  set_source_files_properties(${op}/avx2.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx2}")
  set_source_files_properties(${op}/avx512.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx512}")
endforeach()
