// Question: which rows does a rank send, and how does it fetch those that others send to it?
//
// T tokens per rank, K slots per token, EP ranks, C channels. Rank r owns the experts
// [r * experts_per_rank, (r + 1) * experts_per_rank). A token goes once to every rank that owns one
// of its experts, however many of them.
//
//   source 0  tokens 0..T-1 ──┐      recv_x of rank d, Rw = T * EP rows
//   source 1  tokens 0..T-1 ──┤      ┌─────────────┬─────────────┬── ─ ─┬──────────────┐
//     ...                     ├────> │ from rank 0 │ from rank 1 │      │ unused: zero │
//   source EP-1           ────┘      └─────────────┴─────────────┴── ─ ─┴──────────────┘
//                                    0      prefix[0, d]   prefix[1, d]  prefix[EP-1, d]
//
// Tokens keep their order inside a source's rows. Channels cut a rank's tokens into C runs of
// ceil(T / C); a row's place is first row of its source + start of its channel + send_head.
//
// Who computes what: before the ranks meet, each lists what it sends (PlanSends). Afterwards each
// pulls its own rows from every source's memory (PullRows): no rank writes another's memory.
// Limit: memory bandwidth; 2 * rows received * row_bytes, and row_bytes for every unused row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moeprof {

struct DispatchSizes {
  int64_t tokens, row_bytes, scales, top_k, ranks, experts_per_rank, channels;

  int64_t rows() const { return tokens * ranks; }
  int64_t tokens_per_channel() const { return (tokens + channels - 1) / channels; }
};

// What a rank lets the others read.
struct DispatchSource {
  const uint8_t* x;               // [T, row_bytes]
  const float* scales;            // [T, scales]
  const int32_t* topk_idx;        // [T, K]
  const float* topk_weights;      // [T, K]
  const bool* in_rank;            // [T, EP]
  const int32_t* channel_prefix;  // [EP, C], inclusive
};

// What a rank lists of its own tokens.
struct SendPlan {
  bool* in_rank;            // [T, EP]
  int32_t* channel_prefix;  // [EP, C], tokens sent up to the end of the channel
  int32_t* send_head;       // [T, EP], place within the channel, or -1
};

// What a rank receives.
struct DispatchTarget {
  uint8_t* x;                    // [Rw, row_bytes]
  float* scales;                 // [Rw, scales]
  int32_t* topk_idx;             // [Rw, K], own experts from 0, or -1
  float* topk_weights;           // [Rw, K], zero where the id is -1
  int32_t* rank_prefix;          // [EP, EP], tokens from ranks up to and including s to d
  int32_t* recv_channel_prefix;  // [EP, C], exclusive
  int32_t* src_idx;              // [Rw], token number at the source, or -1
};

// The complaint, naming token, slot, value and bound, where an expert id is outside [-1, experts).
std::optional<std::string> CheckRouting(const DispatchSizes& sizes, const int32_t* topk_idx);

void PlanSends(const DispatchSizes& sizes, const int32_t* topk_idx, const SendPlan& plan);

// Fetches all rows for `rank`. Unused rows become zero (ids and source numbers -1), or NaN where
// `poison`.
void PullRows(const DispatchSizes& sizes, const std::vector<DispatchSource>& sources, int64_t rank,
              const DispatchTarget& target, bool poison);

}  // namespace moeprof
