// Question: what does a cached dispatch on the GPU need to know?
//
// The handle says which token of which rank every received row is, so each rank fetches its rows
// from the others' memory. Results are those of cpu/moe_cached_dispatch/kernel.h bit for bit.
#pragma once

#include <cstdint>

#include "gpu/meeting/exchange_call.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

struct CachedDispatchArgs {
  ExchangeCall call;
  int32_t tokens, words;       // per rank; of word_bytes, per row
  const void* x[kMaxRanks];    // [T, words] of every rank
  const int32_t* rank_prefix;  // [EP, EP]
  const int32_t* src_idx;      // [T * EP]
  void* recv_x;                // [T * EP, words]
  uint32_t unused_bits;        // that unused rows are filled with
  int32_t word_bytes = 16;     // or 4: the gradient of routing weights has rows of K float32
};

gpuError_t LaunchCachedDispatch(gpuStream_t stream, const CachedDispatchArgs& args, int blocks);
gpuError_t LoadCachedDispatchKernel();

}  // namespace moeprof::gpu
