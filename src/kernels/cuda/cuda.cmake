# libnibble_cuda.so: the kernels of a card, opened at run time (device/cuda.cc). Built for Hopper and,
# as PTX that the driver compiles, for everything from Turing on.
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
add_library(nibble_cuda MODULE
  ../device/cuda_device.cu cuda/table.cc
  activation/cuda.cu norm/cuda.cu sample/cuda.cu
  attention/cuda.cu attention/cuda_decode.cu attention/cuda_prefill.cu
  matmul/cuda_prepare.cu matmul/cuda_matvec.cu matmul/cuda_gemm.cu)
target_include_directories(nibble_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
                           ${CUDAToolkit_INCLUDE_DIRS})
# Bit equality of dequantized weights forbids fusing d*q+m; fused products are written out.
target_compile_options(nibble_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --extended-lambda --expt-relaxed-constexpr -fmad=false
    "SHELL:-gencode arch=compute_90a,code=sm_90a" "SHELL:-gencode arch=compute_75,code=compute_75"
    -Xcompiler=-fvisibility=hidden>)
set_target_properties(nibble_cuda PROPERTIES
  CUDA_ARCHITECTURES OFF
  CUDA_STANDARD_REQUIRED OFF  # CMake 3.25 knows no flag for C++20; it is given above
  CUDA_RUNTIME_LIBRARY Static
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_libraries(nibble_cuda PRIVATE ${CMAKE_DL_LIBS})
if(NIBBLE_WERROR)
  target_compile_options(nibble_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
include(GNUInstallDirs)
install(TARGETS nibble_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
