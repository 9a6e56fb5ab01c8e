// Question: how do we say that a call of the CUDA runtime failed?
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/failure.h"

namespace moeprof::gpu {

// `what` names the call or what it was for. Clears the runtime's last error: the next launch, maybe
// somebody else's, would report it.
inline Failure RuntimeFailure(const std::string& what, cudaError_t error) {
  cudaGetLastError();
  return {Fault::kInternal, what + ": " + cudaGetErrorName(error)};
}

}  // namespace moeprof::gpu
