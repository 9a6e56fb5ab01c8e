// Question: which calls of a GPU's runtime does portable code use, and what do they look like?
//
// The names are CUDA's with gpu in place of cuda. With MOEPROF_HIP they are HIP's; that build has
// been compiled nowhere yet and has run on no AMD GPU.
//
// Kernels count on groups of 32 threads. On AMD GPUs with 64 lanes per wavefront two groups share a
// wavefront; Shuffle and Ballot keep them apart.
#pragma once

#include <cstdint>

#if defined(MOEPROF_HIP)

#include <hip/hip_runtime.h>
#define MOEPROF_GPU_NAME(name) hip##name

#else

#include <cuda_runtime_api.h>
#define MOEPROF_GPU_NAME(name) cuda##name

#endif

namespace moeprof::gpu {

using gpuError_t = MOEPROF_GPU_NAME(Error_t);
using gpuStream_t = MOEPROF_GPU_NAME(Stream_t);
constexpr gpuError_t gpuSuccess = MOEPROF_GPU_NAME(Success);

// Null, or "cudaErrorInvalidValue".
inline const char* GpuErrorName(gpuError_t error) {
  return error == gpuSuccess ? nullptr : MOEPROF_GPU_NAME(GetErrorName)(error);
}

}  // namespace moeprof::gpu
