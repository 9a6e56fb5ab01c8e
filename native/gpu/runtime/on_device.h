// Question: on which CUDA device do the runtime calls of a scope act?
#pragma once

#include <cuda_runtime_api.h>

namespace moeprof::gpu {

// Makes a device current, and the one before again at the end.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    error_ = cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_;
};

}  // namespace moeprof::gpu
