// Question: what does a dispatch on the GPU need to know?
//
// T tokens per rank, K slots per token, EP ranks, C channels, Rw = T * EP rows at most, as in
// cpu/moe_dispatch/kernel.h, whose results these are bit for bit.
//
//   plan   each rank lists what it sends, and tells every rank how many rows go where
//   send   each rank writes its tokens' rows straight into the result buffers of the ranks that
//          own their experts (a token once per rank), and clears its own unused rows
//
// A token's row is read once from the own memory, however many ranks it goes to, and crosses the
// link once for each other rank. Limit: the link (docs/gpu.md has what a peer copy reaches).
#pragma once

#include <cstdint>

#include "gpu/meeting/exchange_call.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

struct DispatchShape {
  int32_t tokens, words, scales, top_k, experts_per_rank, channels;  // words: of 16 bytes, per row
};

// What a rank receives, in the memory of that rank.
struct DispatchResult {
  uint4* x;                      // [Rw, words]
  float* scales;                 // [Rw, scales]
  int32_t* topk_idx;             // [Rw, K]
  float* topk_weights;           // [Rw, K]
  int32_t* recv_channel_prefix;  // [EP, C]
  int32_t* src_idx;              // [Rw]
};

struct DispatchArgs {
  ExchangeCall call;
  DispatchShape shape;
  const uint4* x;             // [T, words]
  const float* scales;        // [T, scales]
  const int32_t* topk_idx;    // [T, K]
  const float* topk_weights;  // [T, K]
  bool* in_rank;              // [T, EP]
  int32_t* channel_prefix;    // [EP, C]
  int32_t* send_head;         // [T, EP]
  int32_t* rank_prefix;       // [EP, EP]
  DispatchResult of_rank[kMaxRanks];
  uint32_t unused_bits;  // that unused rows are filled with
};

gpuError_t LaunchDispatch(gpuStream_t stream, const DispatchArgs& args, int blocks);

// Loads the kernels on the current device: a kernel that waits for a peer must not meet the
// loading of that peer's kernel.
gpuError_t LoadDispatchKernels();

}  // namespace moeprof::gpu
