#include <cstdio>
#include <string>

#include "gpu/runtime/device_query.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {
namespace {

// Separated by spaces, "gfx90a gfx942".
constexpr const char* kArchitectures = MOEPROF_HIP_ARCHITECTURES;

std::string DeviceProblem(int device) {
  const std::string name = "GPU " + std::to_string(device);
  hipDeviceProp_t properties;
  const gpuError_t error = hipGetDeviceProperties(&properties, device);
  if (error != gpuSuccess) return name + " does not answer: " + gpuGetErrorString(error);
  const std::string full = properties.gcnArchName;  // "gfx942:sramecc+:xnack-"
  const std::string found = full.substr(0, full.find(':'));
  if ((" " + std::string(kArchitectures) + " ").find(" " + found + " ") != std::string::npos) {
    return "";
  }
  return name + " is of " + found + "; the kernels are compiled for " + kArchitectures + " alone";
}

std::string Problem() {
  int count = 0;
  const gpuError_t error = hipGetDeviceCount(&count);
  if (error != gpuSuccess || count == 0) {
    (void)gpuGetLastError();  // The next call of somebody else must not find this error.
    return error == gpuSuccess || error == hipErrorNoDevice
               ? "no AMD GPU: the driver sees none"
               : std::string("no AMD GPU: the HIP runtime says: ") + gpuGetErrorString(error);
  }
  for (int device = 0; device < count; ++device) {
    const std::string problem = DeviceProblem(device);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace
}  // namespace moeprof::gpu

int MoeprofGpuUsable(char* text, int size) {
  const std::string problem = moeprof::gpu::Problem();
  if (size > 0) std::snprintf(text, static_cast<size_t>(size), "%s", problem.c_str());
  return problem.empty() ? 1 : 0;
}
