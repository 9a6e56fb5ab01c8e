// Question: which group does a unit of work belong to?
//
// For device code alone. Two ways to the same answer: a warp asks together and goes on from the
// group of its last unit, or each thread searches alone.
#pragma once

#include <cstdint>

#include "gpu/runtime/device_code.h"

namespace moeprof::gpu {

// The group that unit `unit` belongs to, at or after `group`; a whole warp asks together.
__device__ __forceinline__ int32_t GroupOfUnit(const int32_t* unit_offsets, int32_t groups,
                                               int32_t unit, int32_t group) {
  const int32_t lane = threadIdx.x % 32;
  for (;; group += 32) {
    const int32_t candidate = group + lane;
    const bool after = candidate >= groups || unit_offsets[candidate + 1] > unit;
    const uint32_t found = Ballot(after);
    if (found != 0) return group + __ffs(found) - 1;
  }
}

// The group that unit `unit` belongs to: the last whose units begin at or before it and that has
// any. By one thread.
__device__ inline int32_t SearchGroup(const int32_t* unit_offsets, int32_t groups, int32_t unit) {
  int32_t low = 0, high = groups;  // unit_offsets[low] <= unit < unit_offsets[high]
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (unit_offsets[middle] <= unit ? low : high) = middle;
  }
  return low;
}

}  // namespace moeprof::gpu
