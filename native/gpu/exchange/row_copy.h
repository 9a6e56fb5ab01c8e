// Question: how does a warp move rows of 16-byte words, near or over the link?
//
// Several loads per lane are in flight before the first is used; nothing is kept in L1, since no
// word is read twice. Four per lane hide the link's latency; more of them cost registers.
#pragma once

#include <cstdint>

#include "gpu/runtime/device_code.h"

namespace moeprof::gpu {

constexpr int kInFlight = 4;

// The row from `from`, `words` long, to `to`; by a warp.
__device__ __forceinline__ void CopyRow(const uint4* from, uint4* to, int32_t words) {
  const int32_t lane = threadIdx.x % 32;
  for (int32_t first = lane; first < words; first += 32 * kInFlight) {
    uint4 held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + 32 * i < words) held[i] = LoadWord(from + first + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + 32 * i < words) StoreWord(to + first + 32 * i, held[i]);
    }
  }
}

// `value` to every 32-bit part of the words; by a warp.
__device__ __forceinline__ void FillRow(uint4* to, int32_t words, uint32_t value) {
  for (int32_t i = threadIdx.x % 32; i < words; i += 32) {
    StoreWord(to + i, make_uint4(value, value, value, value));
  }
}

// `value` to to[first..end); by all threads of the grid.
template <typename T>
__device__ __forceinline__ void FillByGrid(T* to, int64_t first, int64_t end, const T& value) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first + thread; i < end; i += int64_t{gridDim.x} * blockDim.x) to[i] = value;
}

__device__ __forceinline__ int32_t WarpOfGrid() {
  return static_cast<int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
}
__device__ __forceinline__ int32_t WarpsOfGrid() {
  return static_cast<int32_t>(gridDim.x * blockDim.x / 32);
}

}  // namespace moeprof::gpu
