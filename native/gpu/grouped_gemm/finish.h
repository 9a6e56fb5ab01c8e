// Question: what does a grouped GEMM handler return once its kernels are on the stream?
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "gpu/faults/fault_report.h"
#include "gpu/grouped_gemm/fault_text.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

// Success; in strict mode, after the kernels have run, what they reported.
inline xla::ffi::Error Finish(const char* op, cudaStream_t stream, LengthsFault* record) {
  if (!IsStrict()) return xla::ffi::Error::Success();
  const cudaError_t error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) {
    return xla::ffi::Error::Internal(std::string(op) + ": " + cudaGetErrorName(error) + ", " +
                                     cudaGetErrorString(error));
  }
  if (auto fault = TakeLengthsFault(record)) {
    return xla::ffi::Error::InvalidArgument(std::string(op) + ": " + *fault);
  }
  return xla::ffi::Error::Success();
}

// max_threads, the limit on blocks, as the launch takes it: 0 is none.
inline int32_t ClampedBlocks(int64_t max_threads) {
  return static_cast<int32_t>(std::clamp<int64_t>(max_threads, 0, INT32_MAX));
}

}  // namespace moeprof::gpu
