// Question: are the buffers of a combine on the GPU sound, and what do the other ranks see of them?
#include <cstdint>
#include <optional>
#include <string>

#include "common/moe_buffers.h"
#include "gpu/exchange/exchange_handler.h"
#include "gpu/exchange/moe_combine_launch.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

struct Buffers {
  ffi::AnyBuffer x;
  FloatMatrix topk_weights;
  Int32Matrix rank_prefix;
  Int32Matrix channel_prefix;
  BoolMatrix in_rank;
  Int32Matrix send_head;
  Out<ffi::AnyBuffer> combined_x;
  Out<FloatMatrix> combined_weights;
};

bool Fit(Buffers& b, int64_t ranks) {
  const int64_t tokens = b.send_head.dimensions()[0], rows = tokens * ranks;
  const int64_t hidden = b.x.dimensions()[1], channels = b.channel_prefix.dimensions()[1];
  const int64_t top_k = b.topk_weights.dimensions()[1];
  return tokens > 0 && channels > 0 && rows <= INT32_MAX && top_k <= 32 &&
         HasShape(b.x, rows, hidden) && HasShape(b.topk_weights, rows, top_k) &&
         HasShape(b.rank_prefix, ranks, ranks) && HasShape(b.channel_prefix, ranks, channels) &&
         HasShape(b.in_rank, tokens, ranks) && HasShape(b.send_head, tokens, ranks) &&
         HasShape(*b.combined_x, tokens, hidden) && HasShape(*b.combined_weights, tokens, top_k) &&
         b.x.element_type() == b.combined_x->element_type();
}

std::optional<CombineType> TypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return CombineType::kFloat32;
    case ffi::DataType::BF16:
      return CombineType::kBFloat16;
    case ffi::DataType::F16:
      return CombineType::kFloat16;
    default:
      return std::nullopt;
  }
}

PlannedCall Plan(const HandlerCall& call, Buffers b) {
  PlannedCall planned;
  if (b.x.dimensions().size() != 2 || !Fit(b, call.ep_size)) {
    planned.complaint = "buffers do not fit the handle and EP";
    return planned;
  }
  auto type = TypeOf(b.x.element_type());
  if (!type) {
    planned.complaint = "x must be float32, bfloat16 or float16";
    return planned;
  }
  const int64_t row_bytes = RowBytes(b.x);
  if (row_bytes % 16 != 0) {
    if (type != CombineType::kFloat32) {
      planned.complaint = "rows must be a multiple of 16 bytes, found " + std::to_string(row_bytes);
      return planned;
    }
    type = CombineType::kNarrowFloat32;
  }
  const int64_t word_bytes = type == CombineType::kNarrowFloat32 ? 4 : 16;
  CombineArgs args{};
  args.type = *type;
  args.tokens = static_cast<int32_t>(b.send_head.dimensions()[0]);
  args.words = static_cast<int32_t>(row_bytes / word_bytes);
  args.top_k = static_cast<int32_t>(b.topk_weights.dimensions()[1]);
  args.channels = static_cast<int32_t>(b.channel_prefix.dimensions()[1]);
  args.rank_prefix = b.rank_prefix.typed_data();
  args.channel_prefix = b.channel_prefix.typed_data();
  args.in_rank = b.in_rank.typed_data();
  args.send_head = b.send_head.typed_data();
  args.combined_x = static_cast<uint4*>(b.combined_x->untyped_data());
  args.combined_weights = b.combined_weights->typed_data();
  planned.call = {NameOf(call.op),
                  {args.tokens, row_bytes, static_cast<int64_t>(*type), args.top_k, args.channels},
                  {AsPeerBuffer(b.x.untyped_data(), b.x.size_bytes()),
                   AsPeerBuffer(b.topk_weights.untyped_data(), b.topk_weights.size_bytes())}};
  const int blocks = ExchangeBlocks(call.device, int64_t{2} * args.channels);
  planned.launch = [args, blocks, stream = call.stream](const ExchangeCall& exchange,
                                                        const Met& met) mutable {
    args.call = exchange;
    for (int r = 0; r < exchange.ranks; ++r) {
      args.x[r] = static_cast<const uint4*>(met.pointers[r][0]);
      args.topk_weights[r] = static_cast<const float*>(met.pointers[r][1]);
    }
    return LaunchCombine(stream, args, blocks);
  };
  return planned;
}

ffi::Error Combine(gpuStream_t stream, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                   FloatMatrix topk_weights, Int32Matrix rank_prefix, Int32Matrix channel_prefix,
                   BoolMatrix in_rank, Int32Matrix send_head, Out<ffi::AnyBuffer> combined_x,
                   Out<FloatMatrix> combined_weights, int64_t ep_size,
                   ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const HandlerCall call{GpuOp::kCombine, stream, device, run, ep_size, ep_groups, timeout_ms};
  return RunExchange(call, [&](const PeerSeat&) {
    return Plan(call, {x, topk_weights, rank_prefix, channel_prefix, in_rank, send_head, combined_x,
                       combined_weights});
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGpuMoeCombine, moeprof::gpu::Combine,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Ctx<xla::ffi::RunId>()
                                  .Arg<xla::ffi::AnyBuffer>()   // x [T * EP, hidden]
                                  .Arg<moeprof::FloatMatrix>()  // topk_weights [T * EP, K]
                                  .Arg<moeprof::Int32Matrix>()  // rank_prefix_matrix [EP, EP]
                                  .Arg<moeprof::Int32Matrix>()  // channel_prefix_matrix [EP, C]
                                  .Arg<moeprof::BoolMatrix>()   // is_token_in_rank [T, EP]
                                  .Arg<moeprof::Int32Matrix>()  // send_head [T, EP]
                                  .Ret<xla::ffi::AnyBuffer>()   // combined_x [T, hidden]
                                  .Ret<moeprof::FloatMatrix>()  // combined weights [T, K]
                                  .Attr<int64_t>("ep_size")
                                  .Attr<xla::ffi::Span<const int64_t>>("ep_groups")
                                  .Attr<int64_t>("timeout_ms"));
#pragma GCC visibility pop
