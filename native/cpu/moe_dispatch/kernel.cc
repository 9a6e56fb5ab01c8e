#include "cpu/moe_dispatch/kernel.h"

#include <algorithm>
#include <cstring>

#include "cpu/common/poison.h"

namespace moeprof {
namespace {

int32_t SentInAll(const DispatchSizes& sizes, const int32_t* channel_prefix, int64_t rank) {
  return channel_prefix[(rank + 1) * sizes.channels - 1];
}

void WriteRankPrefix(const DispatchSizes& sizes, const std::vector<DispatchSource>& sources,
                     int32_t* rank_prefix) {
  for (int64_t destination = 0; destination < sizes.ranks; ++destination) {
    int32_t total = 0;
    for (int64_t source = 0; source < sizes.ranks; ++source) {
      total += SentInAll(sizes, sources[source].channel_prefix, destination);
      rank_prefix[source * sizes.ranks + destination] = total;
    }
  }
}

void WriteRecvChannelPrefix(const DispatchSizes& sizes, const std::vector<DispatchSource>& sources,
                            int64_t rank, int32_t* recv_channel_prefix) {
  for (int64_t source = 0; source < sizes.ranks; ++source) {
    const int32_t* ends = sources[source].channel_prefix + rank * sizes.channels;
    int32_t* starts = recv_channel_prefix + source * sizes.channels;
    starts[0] = 0;
    std::copy(ends, ends + sizes.channels - 1, starts + 1);
  }
}

// Keeps the slots whose expert `rank` owns.
void CopyRouting(const DispatchSizes& sizes, const DispatchSource& source, int64_t token,
                 int64_t rank, const DispatchTarget& target, int64_t row) {
  const int64_t first_expert = rank * sizes.experts_per_rank;
  for (int64_t slot = 0; slot < sizes.top_k; ++slot) {
    const int64_t from = token * sizes.top_k + slot, to = row * sizes.top_k + slot;
    const int64_t local = source.topk_idx[from] - first_expert;
    const bool is_own = local >= 0 && local < sizes.experts_per_rank;
    target.topk_idx[to] = is_own ? static_cast<int32_t>(local) : -1;
    target.topk_weights[to] = is_own ? source.topk_weights[from] : 0.0f;
  }
}

void PullRow(const DispatchSizes& sizes, const DispatchSource& source, int64_t token, int64_t rank,
             const DispatchTarget& target, int64_t row) {
  std::memcpy(target.x + row * sizes.row_bytes, source.x + token * sizes.row_bytes,
              sizes.row_bytes);
  std::copy_n(source.scales + token * sizes.scales, sizes.scales,
              target.scales + row * sizes.scales);
  CopyRouting(sizes, source, token, rank, target, row);
  target.src_idx[row] = static_cast<int32_t>(token);
}

void ClearRows(const DispatchSizes& sizes, const DispatchTarget& target, int64_t used,
               bool poison) {
  const int64_t unused = sizes.rows() - used;
  FillUnusedRows(target.x + used * sizes.row_bytes, unused * sizes.row_bytes, poison);
  FillUnusedRows(target.scales + used * sizes.scales, unused * sizes.scales * sizeof(float),
                 poison);
  FillUnusedRows(target.topk_weights + used * sizes.top_k, unused * sizes.top_k * sizeof(float),
                 poison);
  std::fill_n(target.topk_idx + used * sizes.top_k, unused * sizes.top_k, -1);
  std::fill_n(target.src_idx + used, unused, -1);
}

}  // namespace

std::optional<std::string> CheckRouting(const DispatchSizes& sizes, const int32_t* topk_idx) {
  const int64_t experts = sizes.experts_per_rank * sizes.ranks;
  for (int64_t i = 0; i < sizes.tokens * sizes.top_k; ++i) {
    if (topk_idx[i] >= -1 && topk_idx[i] < experts) continue;
    return "topk_idx of token " + std::to_string(i / sizes.top_k) + ", slot " +
           std::to_string(i % sizes.top_k) + " is " + std::to_string(topk_idx[i]) +
           ", outside [0, " + std::to_string(experts) + ") and not -1 (unused)";
  }
  return std::nullopt;
}

void PlanSends(const DispatchSizes& sizes, const int32_t* topk_idx, const SendPlan& plan) {
  std::vector<int32_t> sent(sizes.ranks, 0), channel_start(sizes.ranks, 0);
  const int64_t per_channel = sizes.tokens_per_channel();
  for (int64_t channel = 0; channel < sizes.channels; ++channel) {
    const int64_t begin = std::min(channel * per_channel, sizes.tokens);
    const int64_t end = std::min(begin + per_channel, sizes.tokens);
    channel_start = sent;
    for (int64_t token = begin; token < end; ++token) {
      bool* in_rank = plan.in_rank + token * sizes.ranks;
      std::fill_n(in_rank, sizes.ranks, false);
      for (int64_t slot = 0; slot < sizes.top_k; ++slot) {
        const int32_t expert = topk_idx[token * sizes.top_k + slot];
        if (expert >= 0) in_rank[expert / sizes.experts_per_rank] = true;
      }
      for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
        const int32_t place = sent[rank] - channel_start[rank];
        plan.send_head[token * sizes.ranks + rank] = in_rank[rank] ? place : -1;
        sent[rank] += in_rank[rank];
      }
    }
    for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
      plan.channel_prefix[rank * sizes.channels + channel] = sent[rank];
    }
  }
}

void PullRows(const DispatchSizes& sizes, const std::vector<DispatchSource>& sources, int64_t rank,
              const DispatchTarget& target, bool poison) {
  WriteRankPrefix(sizes, sources, target.rank_prefix);
  WriteRecvChannelPrefix(sizes, sources, rank, target.recv_channel_prefix);
  int64_t row = 0;
  for (const DispatchSource& source : sources) {
    for (int64_t token = 0; token < sizes.tokens; ++token) {
      if (!source.in_rank[token * sizes.ranks + rank]) continue;
      PullRow(sizes, source, token, rank, target, row++);
    }
  }
  ClearRows(sizes, target, row, poison);
}

}  // namespace moeprof
