// Question: what do the ranks of one random round exchange, and what should come of it?
//
// Inputs are drawn from a seed. The expected results are those of the CPU kernels (native/cpu),
// which the tests compare with the definition in tests/kernels/moe_numpy.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moeprof::stress {

enum class Skew { kUniform, kOneRank, kHotExpert, kFewTokens, kNothing };
enum class Type { kFloat32, kBFloat16, kFloat16 };

struct Case {
  uint64_t seed;
  int ranks;
  int tokens, row_bytes, scales, top_k, experts_per_rank, channels;
  Skew skew;
  Type type;         // of what is combined
  bool poison;       // unused rows become NaN, not zero
  int unsound_rank;  // has an expert id that does not exist; -1: none

  int rows() const { return tokens * ranks; }
  std::string Text() const;
};

// At most `most_bytes` in a rank's receive buffer.
Case RandomCase(uint64_t seed, int ranks, int64_t most_bytes);

// One rank's operands of the three operations.
struct Inputs {
  std::vector<uint8_t> x;              // [T, row_bytes] for the dispatch
  std::vector<float> scales;           // [T, scales]
  std::vector<int32_t> topk_idx;       // [T, K]
  std::vector<float> topk_weights;     // [T, K]
  std::vector<uint8_t> combine_x;      // [Rw, row_bytes], finite values of the case's type
  std::vector<float> combine_weights;  // [Rw, K]
  std::vector<uint8_t> cached_x;       // [T, row_bytes] for the cached dispatch
};

Inputs DrawInputs(const Case& round, int rank);

// What a rank makes of its own routing alone.
struct Plan {
  std::vector<uint8_t> in_rank;         // [T, EP]
  std::vector<int32_t> channel_prefix;  // [EP, C]
  std::vector<int32_t> send_head;       // [T, EP]
};

Plan PlanOf(const Case& round, const Inputs& inputs);

struct Results {
  std::vector<uint8_t> recv_x;
  std::vector<float> recv_scales;
  std::vector<int32_t> recv_topk_idx;
  std::vector<float> recv_topk_weights;
  std::vector<int32_t> rank_prefix;
  std::vector<int32_t> recv_channel_prefix;
  std::vector<int32_t> recv_src_idx;
  std::vector<uint8_t> combined_x;
  std::vector<float> combined_weights;
  std::vector<uint8_t> cached_recv_x;
};

// Of one rank. Sound rounds only.
Results ExpectedOf(const Case& round, const std::vector<Inputs>& inputs,
                   const std::vector<Plan>& plans, int rank);

}  // namespace moeprof::stress
