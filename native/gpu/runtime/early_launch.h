// Question: how does a kernel start while the one before it in the stream still runs?
//
// For device code alone. The kernel before allows it with LetNextKernelStart (device_code.h). AMD's
// runtime has no such launch: there the kernel starts when the one before has ended.
#pragma once

#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

template <typename Args>
gpuError_t LaunchEarly(gpuStream_t stream, void (*kernel)(Args), int blocks, int threads,
                       const Args& args) {
#if defined(MOEPROF_HIP)
  kernel<<<blocks, threads, 0, stream>>>(args);
  return gpuGetLastError();
#else
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
#endif
}

}  // namespace moeprof::gpu
