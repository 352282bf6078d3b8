# libnibble_cuda.so: the kernels of a card, opened at run time (device/cuda.cc). What every card needs
# is built for Turing, Ampere, Ada and Hopper, and as PTX, which the driver compiles, for what comes
# after; kernels that use Hopper's own instructions (matmul/cuda_w4_*.cu, attention/cuda_wgmma.cu) are
# for Hopper alone.
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
set(every_card
  ../device/cuda_device.cu activation/cuda.cu norm/cuda.cu sample/cuda.cu
  attention/cuda.cu attention/cuda_decode.cu attention/cuda_prefill.cu
  matmul/cuda_prepare.cu matmul/cuda_matvec.cu matmul/cuda_gemm.cu matmul/cuda_w8a8.cu
  matmul/cuda_tiles.cu)
set(hopper_only matmul/cuda_w4_few.cu matmul/cuda_w4_wgmma.cu matmul/cuda_w4_panel.cu
  attention/cuda_wgmma.cu)
# Apart, so that a test on any machine can ask them how they would cut a product.
add_library(nibble_cuda_hopper OBJECT ${hopper_only})
add_library(nibble_cuda MODULE cuda/table.cc ${every_card})
target_link_libraries(nibble_cuda PRIVATE nibble_cuda_hopper)
set(hopper -gencode=arch=compute_90a,code=sm_90a)
set_source_files_properties(${hopper_only} PROPERTIES COMPILE_OPTIONS "${hopper}")
set_source_files_properties(${every_card} PROPERTIES COMPILE_OPTIONS
  "${hopper};-gencode=arch=compute_75,code=sm_75;-gencode=arch=compute_80,code=sm_80;\
-gencode=arch=compute_89,code=sm_89;-gencode=arch=compute_90,code=compute_90")
foreach(target nibble_cuda nibble_cuda_hopper)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
                             ${CUDAToolkit_INCLUDE_DIRS})
  # Bit equality of dequantized weights forbids fusing d*q+m; fused products are written out.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --extended-lambda --expt-relaxed-constexpr -fmad=false
      -Xcompiler=-fvisibility=hidden>)
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES OFF
    CUDA_STANDARD_REQUIRED OFF  # CMake 3.25 knows no flag for C++20; it is given above
    CUDA_RUNTIME_LIBRARY Static
    POSITION_INDEPENDENT_CODE ON)
  if(NIBBLE_WERROR)
    target_compile_options(${target} PRIVATE
                           $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
endforeach()
set_target_properties(nibble_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_libraries(nibble_cuda PRIVATE ${CMAKE_DL_LIBS})
if(NIBBLE_TESTS)
  add_executable(test_cuda_plans matmul/cuda_plans_test.cc)
  target_include_directories(test_cuda_plans SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(test_cuda_plans PRIVATE nibble_cuda_hopper nibble_flags CUDA::cudart_static
                        GTest::gtest_main)
  gtest_discover_tests(test_cuda_plans DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 60)
endif()
if(NIBBLE_BENCH)
  foreach(bench step product)
    add_executable(cuda_${bench}_bench cuda/${bench}_bench.cc)
    target_link_libraries(cuda_${bench}_bench PRIVATE nibble_flags fmt::fmt ${CMAKE_DL_LIBS})
  endforeach()
  # The kernels for many tokens by themselves, which `check` compares with float64.
  set(of_w4 matmul/cuda_w4_bench.cu matmul/cuda_w4_check.cu)
  set_source_files_properties(${of_w4} PROPERTIES COMPILE_OPTIONS "${hopper};-std=c++20")
  add_executable(cuda_w4_bench ${of_w4})
  set_target_properties(cuda_w4_bench PROPERTIES CUDA_ARCHITECTURES OFF
                        CUDA_STANDARD_REQUIRED OFF CUDA_RUNTIME_LIBRARY Static)
  target_include_directories(cuda_w4_bench PRIVATE ${CMAKE_SOURCE_DIR}/src
                             ${CMAKE_SOURCE_DIR}/include ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(cuda_w4_bench PRIVATE nibble_cuda_hopper ${CMAKE_DL_LIBS})
endif()
include(GNUInstallDirs)
install(TARGETS nibble_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
