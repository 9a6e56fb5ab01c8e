// Question: how do we say that a call of a GPU's runtime failed?
#pragma once

#include <string>

#include "common/failure.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

// `what` names the call or what it was for. Clears the runtime's last error: the next launch, maybe
// somebody else's, would report it.
inline Failure RuntimeFailure(const std::string& what, gpuError_t error) {
  (void)gpuGetLastError();
  return {Fault::kInternal, what + ": " + GpuErrorName(error)};
}

}  // namespace moeprof::gpu
