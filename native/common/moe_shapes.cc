#include "common/moe_shapes.h"

namespace moeprof {
namespace {

bool HasRank2(const xla::ffi::AnyBuffer& x) { return x.dimensions().size() == 2; }

bool Fit(const DispatchInputs& in, DispatchOutputs& out, int64_t ranks) {
  const int64_t tokens = in.x.dimensions()[0], hidden = in.x.dimensions()[1];
  const int64_t scales = in.scales.dimensions()[1], top_k = in.topk_idx.dimensions()[1];
  const int64_t channels = out.channel_prefix->dimensions()[1], rows = tokens * ranks;
  return tokens > 0 && channels > 0 && in.x.element_type() == out.recv_x->element_type() &&
         HasShape(in.scales, tokens, scales) && HasShape(in.topk_idx, tokens, top_k) &&
         HasShape(in.topk_weights, tokens, top_k) && HasShape(*out.recv_x, rows, hidden) &&
         HasShape(*out.recv_scales, rows, scales) && HasShape(*out.recv_topk_idx, rows, top_k) &&
         HasShape(*out.recv_topk_weights, rows, top_k) &&
         HasShape(*out.rank_prefix, ranks, ranks) &&
         HasShape(*out.channel_prefix, ranks, channels) &&
         HasShape(*out.recv_channel_prefix, ranks, channels) &&
         HasLength(*out.recv_src_idx, rows) && HasShape(*out.in_rank, tokens, ranks) &&
         HasShape(*out.send_head, tokens, ranks);
}

bool Fit(CombineBuffers& b, int64_t ranks) {
  const int64_t tokens = b.send_head.dimensions()[0], rows = tokens * ranks;
  const int64_t hidden = b.x.dimensions()[1], channels = b.channel_prefix.dimensions()[1];
  const int64_t top_k = b.topk_weights.dimensions()[1];
  return tokens > 0 && channels > 0 && HasShape(b.x, rows, hidden) &&
         HasShape(b.topk_weights, rows, top_k) && HasShape(b.rank_prefix, ranks, ranks) &&
         HasShape(b.channel_prefix, ranks, channels) && HasShape(b.in_rank, tokens, ranks) &&
         HasShape(b.send_head, tokens, ranks) && HasShape(*b.combined_x, tokens, hidden) &&
         HasShape(*b.combined_weights, tokens, top_k) &&
         b.x.element_type() == b.combined_x->element_type();
}

}  // namespace

std::optional<std::string> CheckDispatch(const DispatchInputs& in, DispatchOutputs& out,
                                         int64_t ranks, int64_t num_experts) {
  if (!HasRank2(in.x) || num_experts <= 0 || num_experts % ranks != 0) {
    return "x must be [tokens, hidden], num_experts a multiple of EP";
  }
  if (!Fit(in, out, ranks)) return "buffers do not fit x and EP";
  return std::nullopt;
}

std::optional<std::string> CheckCachedDispatch(CachedDispatchBuffers& b, int64_t ranks) {
  if (!HasRank2(b.x) || b.x.element_type() != b.recv_x->element_type()) {
    return "x must be [tokens, hidden] with the dtype of the result";
  }
  const int64_t rows = b.x.dimensions()[0] * ranks;
  if (!HasShape(b.rank_prefix, ranks, ranks) || !HasLength(b.recv_src_idx, rows) ||
      !HasShape(*b.recv_x, rows, b.x.dimensions()[1])) {
    return "buffers do not fit x and EP";
  }
  return std::nullopt;
}

std::optional<std::string> CheckCombine(CombineBuffers& b, int64_t ranks) {
  if (!HasRank2(b.x) || !Fit(b, ranks)) return "buffers do not fit the handle and EP";
  return std::nullopt;
}

}  // namespace moeprof
