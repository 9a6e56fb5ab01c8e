// Question: how does a kernel read the lengths of the groups?
#pragma once

#include <cstdint>

#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

// Lengths on the device as the caller gave them: `groups` int32 or int64, and where `offsets` is
// not null, groups + 1 int32 or int64 that must be their exclusive sums.
struct GroupLengths {
  const void* lengths;
  const void* offsets;
  bool lengths_are_int64;
  bool offsets_are_int64;
  int32_t groups;
};

#if defined(MOEPROF_DEVICE_CODE)
__device__ __forceinline__ int64_t ReadInteger(const void* data, bool is_int64, int64_t index) {
  return is_int64 ? static_cast<const int64_t*>(data)[index]
                  : static_cast<const int32_t*>(data)[index];
}
#endif

}  // namespace moeprof::gpu
