#include "stress/gpu_exchange_case.h"

#include <algorithm>
#include <cstring>

#include "cpu/common/convert.h"
#include "cpu/moe_cached_dispatch/kernel.h"
#include "cpu/moe_combine/kernel.h"
#include "cpu/moe_dispatch/kernel.h"

namespace moeprof::stress {
namespace {

// splitmix64: each seed gives its own sequence.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [low, high].
  int In(int low, int high) {
    return low + static_cast<int>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  template <typename T, size_t n>
  T OneOf(const T (&values)[n]) {
    return values[Next() % n];
  }

 private:
  uint64_t state_;
};

const char* NameOf(Skew skew) {
  switch (skew) {
    case Skew::kUniform:
      return "uniform";
    case Skew::kOneRank:
      return "everything to one rank";
    case Skew::kHotExpert:
      return "one hot expert";
    case Skew::kFewTokens:
      return "few tokens are sent";
    case Skew::kNothing:
      return "nothing is sent";
  }
  return "";
}

template <typename T>
void FillBits(Random& random, std::vector<T>& values, uint64_t mask) {
  static_assert(sizeof(T) <= 8);
  auto* bytes = reinterpret_cast<uint8_t*>(values.data());
  const size_t size = values.size() * sizeof(T);
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t bits = random.Next() & mask;
    std::memcpy(bytes + at, &bits, std::min<size_t>(8, size - at));
  }
}

// Clears the highest bit of the exponent: what is left is finite and smaller than 2.
uint64_t FiniteMask(Type type) {
  return type == Type::kFloat32 ? 0xBFFFFFFFBFFFFFFFu : 0xBFFFBFFFBFFFBFFFu;
}

int DrawExpert(Random& random, const Case& round) {
  const int experts = round.experts_per_rank * round.ranks;
  switch (round.skew) {
    case Skew::kUniform:
      return random.In(0, 9) == 0 ? -1 : random.In(0, experts - 1);
    case Skew::kOneRank:
      return static_cast<int>(round.seed % round.ranks) * round.experts_per_rank +
             random.In(0, round.experts_per_rank - 1);
    case Skew::kHotExpert:
      return random.In(0, 3) != 0 ? static_cast<int>(round.seed % experts)
                                  : random.In(0, experts - 1);
    case Skew::kFewTokens:
      return random.In(0, 20 * round.top_k) == 0 ? random.In(0, experts - 1) : -1;
    case Skew::kNothing:
      return -1;
  }
  return -1;
}

DispatchSizes SizesOf(const Case& round) {
  return {round.tokens, round.row_bytes,        round.scales,  round.top_k,
          round.ranks,  round.experts_per_rank, round.channels};
}

const bool* AsBools(const std::vector<uint8_t>& bytes) {
  return reinterpret_cast<const bool*>(bytes.data());
}

template <typename T>
void Combine(const Case& round, const MoeHandle& handle, const std::vector<CombineSource>& sources,
             int rank, Results& results) {
  SumRows<T>(handle, round.row_bytes / static_cast<int64_t>(sizeof(T)), round.top_k, sources, rank,
             {results.combined_x.data(), results.combined_weights.data()});
}

}  // namespace

std::string Case::Text() const {
  const char* const types[] = {"float32", "bfloat16", "float16"};
  return "seed " + std::to_string(seed) + ": EP " + std::to_string(ranks) + ", T " +
         std::to_string(tokens) + ", row " + std::to_string(row_bytes) + " B, scales " +
         std::to_string(scales) + ", K " + std::to_string(top_k) + ", experts per rank " +
         std::to_string(experts_per_rank) + ", channels " + std::to_string(channels) + ", " +
         NameOf(skew) + ", " + types[static_cast<int>(type)] + (poison ? ", poisoned" : "") +
         (unsound_rank < 0 ? "" : ", unsound ids on rank " + std::to_string(unsound_rank));
}

Case RandomCase(uint64_t seed, int ranks, int64_t most_bytes) {
  Random random(seed * 2 + 1);
  Case round{};
  round.seed = seed;
  round.ranks = ranks;
  const int chunks[] = {1, 2, 8, 31, 32, 33, 63, 127, 128, 129, 130, 256, 300, 896};
  round.row_bytes = 16 * random.OneOf(chunks);
  const int64_t most_tokens =
      std::max<int64_t>(1, std::min<int64_t>(1100, most_bytes / (ranks * round.row_bytes)));
  round.tokens = random.In(0, 7) == 0 ? 1 : random.In(1, static_cast<int>(most_tokens));
  const int scales[] = {0, 0, 1, 5, 56};
  round.scales = random.OneOf(scales);
  const int top_k[] = {1, 2, 3, 8, 8, 8, 17, 32};
  round.top_k = random.OneOf(top_k);
  round.experts_per_rank = random.In(1, 40);
  const int channels[] = {1, 2, 5, 10, 16, 32, 32, 33, 66, 70};
  round.channels = random.OneOf(channels);
  const Skew skews[] = {Skew::kUniform,   Skew::kUniform,   Skew::kUniform, Skew::kOneRank,
                        Skew::kHotExpert, Skew::kFewTokens, Skew::kNothing};
  round.skew = random.OneOf(skews);
  const Type types[] = {Type::kFloat32, Type::kBFloat16, Type::kBFloat16, Type::kFloat16};
  round.type = random.OneOf(types);
  round.poison = random.In(0, 3) == 0;
  round.unsound_rank = random.In(0, 49) == 0 ? random.In(0, ranks - 1) : -1;
  return round;
}

Inputs DrawInputs(const Case& round, int rank) {
  Random random(round.seed * 1000003 + static_cast<uint64_t>(rank));
  Inputs in;
  const size_t tokens = static_cast<size_t>(round.tokens), rows = static_cast<size_t>(round.rows());
  in.x.resize(tokens * round.row_bytes);
  in.scales.resize(tokens * round.scales);
  in.topk_idx.resize(tokens * round.top_k);
  in.topk_weights.resize(tokens * round.top_k);
  in.combine_x.resize(rows * round.row_bytes);
  in.combine_weights.resize(rows * round.top_k);
  in.cached_x.resize(tokens * round.row_bytes);
  FillBits(random, in.x, ~uint64_t{0});
  FillBits(random, in.scales, FiniteMask(Type::kFloat32));
  FillBits(random, in.topk_weights, FiniteMask(Type::kFloat32));
  FillBits(random, in.combine_x, FiniteMask(round.type));
  FillBits(random, in.combine_weights, FiniteMask(Type::kFloat32));
  FillBits(random, in.cached_x, ~uint64_t{0});
  for (int32_t& expert : in.topk_idx) expert = DrawExpert(random, round);
  if (rank == round.unsound_rank) {
    const int32_t ids[] = {-2, round.experts_per_rank * round.ranks, INT32_MAX, INT32_MIN};
    in.topk_idx[random.Next() % in.topk_idx.size()] = random.OneOf(ids);
  }
  return in;
}

Plan PlanOf(const Case& round, const Inputs& inputs) {
  Plan plan;
  plan.in_rank.resize(static_cast<size_t>(round.rows()));
  plan.send_head.resize(static_cast<size_t>(round.rows()));
  plan.channel_prefix.resize(static_cast<size_t>(round.ranks) * round.channels);
  if (round.unsound_rank >= 0) return plan;
  PlanSends(SizesOf(round), inputs.topk_idx.data(),
            {reinterpret_cast<bool*>(plan.in_rank.data()), plan.channel_prefix.data(),
             plan.send_head.data()});
  return plan;
}

Results ExpectedOf(const Case& round, const std::vector<Inputs>& inputs,
                   const std::vector<Plan>& plans, int rank) {
  const size_t rows = static_cast<size_t>(round.rows()), tokens = static_cast<size_t>(round.tokens);
  Results out;
  out.recv_x.resize(rows * round.row_bytes);
  out.recv_scales.resize(rows * round.scales);
  out.recv_topk_idx.resize(rows * round.top_k);
  out.recv_topk_weights.resize(rows * round.top_k);
  out.rank_prefix.resize(static_cast<size_t>(round.ranks) * round.ranks);
  out.recv_channel_prefix.resize(static_cast<size_t>(round.ranks) * round.channels);
  out.recv_src_idx.resize(rows);
  out.combined_x.resize(tokens * round.row_bytes);
  out.combined_weights.resize(tokens * round.top_k);
  out.cached_recv_x.resize(rows * round.row_bytes);

  std::vector<DispatchSource> sources;
  std::vector<CombineSource> combined;
  std::vector<const uint8_t*> cached;
  for (size_t r = 0; r < inputs.size(); ++r) {
    const Inputs& in = inputs[r];
    sources.push_back({in.x.data(), in.scales.data(), in.topk_idx.data(), in.topk_weights.data(),
                       AsBools(plans[r].in_rank), plans[r].channel_prefix.data()});
    combined.push_back({in.combine_x.data(), in.combine_weights.data()});
    cached.push_back(in.cached_x.data());
  }
  PullRows(SizesOf(round), sources, rank,
           {out.recv_x.data(), out.recv_scales.data(), out.recv_topk_idx.data(),
            out.recv_topk_weights.data(), out.rank_prefix.data(), out.recv_channel_prefix.data(),
            out.recv_src_idx.data()},
           round.poison);
  const MoeHandle handle{out.rank_prefix.data(),
                         plans[rank].channel_prefix.data(),
                         out.recv_src_idx.data(),
                         AsBools(plans[rank].in_rank),
                         plans[rank].send_head.data(),
                         round.tokens,
                         round.ranks,
                         round.channels};
  switch (round.type) {
    case Type::kFloat32:
      Combine<float>(round, handle, combined, rank, out);
      break;
    case Type::kBFloat16:
      Combine<BFloat16>(round, handle, combined, rank, out);
      break;
    case Type::kFloat16:
      Combine<Float16>(round, handle, combined, rank, out);
      break;
  }
  PullCachedRows(handle, round.row_bytes, cached, rank, out.cached_recv_x.data(), round.poison);
  return out;
}

}  // namespace moeprof::stress
