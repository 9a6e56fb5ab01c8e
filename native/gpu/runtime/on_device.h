// Question: on which GPU do the runtime calls of a scope act?
#pragma once

#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

// Makes a device current, and the one before again at the end.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    (void)gpuGetDevice(&before_);
    error_ = gpuSetDevice(device);
  }
  ~OnDevice() { (void)gpuSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  gpuError_t error() const { return error_; }

 private:
  int before_ = 0;
  gpuError_t error_;
};

}  // namespace moeprof::gpu
