#include "gpu/runtime/device_query.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

namespace moeprof {
namespace {

constexpr int kMajor = 9, kMinor = 0;

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string DriverProblem(cudaError_t error) {
  if (error == cudaErrorNoDevice) return "no NVIDIA GPU: the driver sees none";
  int driver = 0;
  // Zero where no driver is installed at all.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA GPU: no CUDA driver is installed";
  }
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is for CUDA " + VersionText(driver) +
           ", the GPU library needs CUDA " + VersionText(CUDART_VERSION) +
           " or newer: update the driver, or build the library with an older nvcc";
  }
  return std::string("the CUDA driver does not answer: ") + cudaGetErrorString(error);
}

std::string DeviceProblem(int device) {
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  const std::string name = "GPU " + std::to_string(device);
  if (error != cudaSuccess) return name + " does not answer: " + cudaGetErrorString(error);
  if (major == kMajor && minor == kMinor) return "";
  return name + " has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
         "; the kernels are compiled for " + std::to_string(kMajor) + "." + std::to_string(kMinor) +
         " (NVIDIA Hopper) alone";
}

std::string Problem() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    const std::string problem = DriverProblem(error);
    cudaGetLastError();  // The next call of somebody else must not find this error.
    return problem;
  }
  if (count == 0) return DriverProblem(cudaErrorNoDevice);
  for (int device = 0; device < count; ++device) {
    const std::string problem = DeviceProblem(device);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace
}  // namespace moeprof

int MoeprofGpuUsable(char* text, int size) {
  const std::string problem = moeprof::Problem();
  if (size > 0) std::snprintf(text, static_cast<size_t>(size), "%s", problem.c_str());
  return problem.empty() ? 1 : 0;
}
