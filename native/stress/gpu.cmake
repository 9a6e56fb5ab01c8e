# Question: which programs check the GPU kernels without a framework, and how are they built?
#
# With MOEPROF_GPU_CHECKS, from the objects of the GPU library itself.
add_library(moeprof_gpu_parts STATIC $<TARGET_OBJECTS:moeprof_gpu_objects>)
target_link_libraries(moeprof_gpu_parts PUBLIC CUDA::cudart_static Threads::Threads)

# The CPU's kernels and conversions are the oracle.
add_library(moeprof_gpu_oracle STATIC
  ${PROJECT_SOURCE_DIR}/cpu/common/convert.cc
  ${PROJECT_SOURCE_DIR}/cpu/moe_cached_dispatch/kernel.cc
  ${PROJECT_SOURCE_DIR}/cpu/moe_combine/kernel.cc
  ${PROJECT_SOURCE_DIR}/cpu/moe_dispatch/kernel.cc
  ${PROJECT_SOURCE_DIR}/cpu/common/poison.cc)
moeprof_gpu_compile_options(moeprof_gpu_oracle)

# add_gpu_check(NAME SOURCE…): moeprof_NAME of stress/SOURCE….
function(add_gpu_check name)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/stress/)
  add_executable(moeprof_${name} ${ARGN})
  set_target_properties(moeprof_${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  moeprof_gpu_compile_options(moeprof_${name})
  target_link_libraries(moeprof_${name} PRIVATE moeprof_gpu_oracle moeprof_gpu_parts)
endfunction()

add_gpu_check(gpu_grouped_gemm_stress gpu_grouped_gemm_stress.cc gpu_grouped_gemm_case.cc)
add_gpu_check(gpu_exchange_stress gpu_exchange_stress.cu gpu_exchange_bench.cu gpu_exchange_rank.cu
  gpu_exchange_case.cc gpu_exchange_compare.cc)
add_gpu_check(gpu_process_exchange_stress gpu_process_exchange_stress.cu gpu_process_rank.cu)
add_gpu_check(gpu_planted_faults gpu_planted_faults.cu)
