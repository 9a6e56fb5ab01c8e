// Question: what does a combine on the GPU need to know?
//
// Each rank fetches its tokens' rows from the ranks that they were sent to and adds them up in
// float32 in rank order. Results are those of cpu/moe_combine/kernel.h bit for bit: one row is
// copied, not converted.
#pragma once

#include <cstdint>

#include "gpu/meeting/exchange_call.h"
#include "gpu/runtime/element_type.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

struct CombineArgs {
  ExchangeCall call;
  ElementType type;
  bool is_narrow;                          // of float32 rows that are no multiple of 16 bytes
  int32_t tokens, words, top_k, channels;  // words: of 16 bytes (narrow: 4), per row
  const uint4* x[kMaxRanks];               // [T * EP, words] of every rank
  const float* topk_weights[kMaxRanks];    // [T * EP, K] of every rank
  const int32_t* rank_prefix;              // [EP, EP], this and the next three of this rank
  const int32_t* channel_prefix;           // [EP, C]
  const bool* in_rank;                     // [T, EP]
  const int32_t* send_head;                // [T, EP]
  uint4* combined_x;                       // [T, words]
  float* combined_weights;                 // [T, K]
};

gpuError_t LaunchCombine(gpuStream_t stream, const CombineArgs& args, int blocks);
gpuError_t LoadCombineKernels();

}  // namespace moeprof::gpu
