# The operations beside matmul: each folder has NAME.cc, reference.cc, avx2.cc, avx512.cc and
# NAME_test.cc. The flags of the last two are those of matmul.cmake.
set(ops_sources ops.cc attention/kv_cache.cc sample/sample.cc
    probe/probe.cc probe/avx2.cc probe/avx512.cc probe/avx512_bf16.cc)
set(ops_tests sample/sample_test.cc attention/cuda_test.cc sample/cuda_test.cc)
foreach(op activation attention norm rope)
  list(APPEND ops_sources ${op}/${op}.cc ${op}/reference.cc ${op}/avx2.cc ${op}/avx512.cc)
  list(APPEND ops_tests ${op}/${op}_test.cc)
  set_source_files_properties(${op}/avx2.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx2}")
  set_source_files_properties(${op}/avx512.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx512}")
endforeach()
set_source_files_properties(probe/avx2.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx2}")
set_source_files_properties(probe/avx512.cc PROPERTIES COMPILE_OPTIONS "${kernel_flags_kAvx512}")
set_source_files_properties(probe/avx512_bf16.cc PROPERTIES COMPILE_OPTIONS
                            "${kernel_flags_kAvx512};-mavx512bf16")

if(NIBBLE_BENCH)
  add_executable(bench_ops activation/activation_bench.cc attention/attention_bench.cc
                 norm/norm_bench.cc)
  target_link_libraries(bench_ops PRIVATE nibble_kernels benchmark::benchmark_main)
endif()
