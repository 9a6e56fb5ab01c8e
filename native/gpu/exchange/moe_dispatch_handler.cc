// Question: are the buffers of a dispatch on the GPU sound, and what do the other ranks see of
// them?
#include <cstdint>

#include "common/moe_buffers.h"
#include "gpu/exchange/exchange_handler.h"
#include "gpu/exchange/moe_dispatch_launch.h"
#include "gpu/exchange/unused_rows.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

// Two for a combine. Writing into peers' memory is 3 % faster with half as many again (T = 4096 and
// 8192 rows of 14,336 bytes, two H200).
constexpr int64_t kBlocksPerChannel = 3;

struct Inputs {
  ffi::AnyBuffer x;
  FloatMatrix scales;
  Int32Matrix topk_idx;
  FloatMatrix topk_weights;
};

struct Outputs {
  Out<ffi::AnyBuffer> recv_x;
  Out<FloatMatrix> recv_scales;
  Out<Int32Matrix> recv_topk_idx;
  Out<FloatMatrix> recv_topk_weights;
  Out<Int32Matrix> rank_prefix;
  Out<Int32Matrix> channel_prefix;
  Out<Int32Matrix> recv_channel_prefix;
  Out<Int32Vector> recv_src_idx;
  Out<BoolMatrix> in_rank;
  Out<Int32Matrix> send_head;
};

bool Fit(const Inputs& in, Outputs& out, int64_t ranks) {
  const int64_t tokens = in.x.dimensions()[0], hidden = in.x.dimensions()[1];
  const int64_t rows = tokens * ranks, channels = out.channel_prefix->dimensions()[1];
  const int64_t scales = in.scales.dimensions()[1], top_k = in.topk_idx.dimensions()[1];
  return tokens > 0 && channels > 0 && rows <= INT32_MAX && top_k <= 32 &&
         RowBytes(in.x) % sizeof(uint4) == 0 && HasShape(in.scales, tokens, scales) &&
         HasShape(in.topk_idx, tokens, top_k) && HasShape(in.topk_weights, tokens, top_k) &&
         HasShape(*out.recv_x, rows, hidden) && HasShape(*out.recv_scales, rows, scales) &&
         HasShape(*out.recv_topk_idx, rows, top_k) &&
         HasShape(*out.recv_topk_weights, rows, top_k) &&
         HasShape(*out.rank_prefix, ranks, ranks) &&
         HasShape(*out.channel_prefix, ranks, channels) &&
         HasShape(*out.recv_channel_prefix, ranks, channels) &&
         HasLength(*out.recv_src_idx, rows) && HasShape(*out.in_rank, tokens, ranks) &&
         HasShape(*out.send_head, tokens, ranks);
}

template <typename Buffer>
PeerBuffer Shown(Buffer& buffer) {
  return AsPeerBuffer(buffer->untyped_data(), buffer->size_bytes());
}

DispatchResult ResultOf(const std::vector<void*>& shown) {
  return {static_cast<uint4*>(shown[0]),   static_cast<float*>(shown[1]),
          static_cast<int32_t*>(shown[2]), static_cast<float*>(shown[3]),
          static_cast<int32_t*>(shown[4]), static_cast<int32_t*>(shown[5])};
}

PlannedCall Plan(const HandlerCall& call, Inputs in, Outputs out, int64_t num_experts) {
  PlannedCall planned;
  if (in.x.dimensions().size() != 2 || num_experts <= 0 || num_experts % call.ep_size != 0) {
    planned.complaint = "x must be [tokens, hidden], num_experts a multiple of EP";
    return planned;
  }
  if (!Fit(in, out, call.ep_size)) {
    planned.complaint = "buffers do not fit x and EP";
    return planned;
  }
  DispatchArgs args{};
  args.shape = {static_cast<int32_t>(in.x.dimensions()[0]),
                static_cast<int32_t>(RowBytes(in.x) / sizeof(uint4)),
                static_cast<int32_t>(in.scales.dimensions()[1]),
                static_cast<int32_t>(in.topk_idx.dimensions()[1]),
                static_cast<int32_t>(num_experts / call.ep_size),
                static_cast<int32_t>(out.channel_prefix->dimensions()[1])};
  args.x = static_cast<const uint4*>(in.x.untyped_data());
  args.scales = in.scales.typed_data();
  args.topk_idx = in.topk_idx.typed_data();
  args.topk_weights = in.topk_weights.typed_data();
  args.in_rank = out.in_rank->typed_data();
  args.channel_prefix = out.channel_prefix->typed_data();
  args.send_head = out.send_head->typed_data();
  args.rank_prefix = out.rank_prefix->typed_data();
  args.unused = UnusedRowBits();
  const DispatchShape& shape = args.shape;
  planned.call = {
      NameOf(call.op),
      {shape.tokens, RowBytes(in.x), shape.scales, shape.top_k, shape.experts_per_rank,
       shape.channels},
      {Shown(out.recv_x), Shown(out.recv_scales), Shown(out.recv_topk_idx),
       Shown(out.recv_topk_weights), Shown(out.recv_channel_prefix), Shown(out.recv_src_idx)}};
  const int blocks = ExchangeBlocks(call.device, kBlocksPerChannel * shape.channels);
  planned.launch = [args, blocks, stream = call.stream](const ExchangeCall& exchange,
                                                        const Met& met) mutable {
    args.call = exchange;
    for (int r = 0; r < exchange.ranks; ++r) args.of_rank[r] = ResultOf(met.pointers[r]);
    return LaunchDispatch(stream, args, blocks);
  };
  return planned;
}

ffi::Error Dispatch(gpuStream_t stream, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                    FloatMatrix scales, Int32Matrix topk_idx, FloatMatrix topk_weights,
                    Out<ffi::AnyBuffer> recv_x, Out<FloatMatrix> recv_scales,
                    Out<Int32Matrix> recv_topk_idx, Out<FloatMatrix> recv_topk_weights,
                    Out<Int32Matrix> rank_prefix, Out<Int32Matrix> channel_prefix,
                    Out<Int32Matrix> recv_channel_prefix, Out<Int32Vector> recv_src_idx,
                    Out<BoolMatrix> in_rank, Out<Int32Matrix> send_head, int64_t num_experts,
                    int64_t ep_size, ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const HandlerCall call{GpuOp::kDispatch, stream, device, run, ep_size, ep_groups, timeout_ms};
  return RunExchange(call, [&](const PeerSeat&) {
    return Plan(call, {x, scales, topk_idx, topk_weights},
                {recv_x, recv_scales, recv_topk_idx, recv_topk_weights, rank_prefix, channel_prefix,
                 recv_channel_prefix, recv_src_idx, in_rank, send_head},
                num_experts);
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGpuMoeDispatch, moeprof::gpu::Dispatch,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Ctx<xla::ffi::RunId>()
                                  .Arg<xla::ffi::AnyBuffer>()   // x [T, hidden]
                                  .Arg<moeprof::FloatMatrix>()  // scales [T, scales]
                                  .Arg<moeprof::Int32Matrix>()  // topk_idx [T, K]
                                  .Arg<moeprof::FloatMatrix>()  // topk_weights [T, K]
                                  .Ret<xla::ffi::AnyBuffer>()   // recv_x [Rw, hidden]
                                  .Ret<moeprof::FloatMatrix>()  // recv_scales [Rw, scales]
                                  .Ret<moeprof::Int32Matrix>()  // recv_topk_idx [Rw, K]
                                  .Ret<moeprof::FloatMatrix>()  // recv_topk_weights [Rw, K]
                                  .Ret<moeprof::Int32Matrix>()  // rank_prefix_matrix [EP, EP]
                                  .Ret<moeprof::Int32Matrix>()  // channel_prefix_matrix [EP, C]
                                  .Ret<moeprof::Int32Matrix>()  // recv_channel_prefix_matrix
                                  .Ret<moeprof::Int32Vector>()  // recv_src_idx [Rw]
                                  .Ret<moeprof::BoolMatrix>()   // is_token_in_rank [T, EP]
                                  .Ret<moeprof::Int32Matrix>()  // send_head [T, EP]
                                  .Attr<int64_t>("num_experts")
                                  .Attr<int64_t>("ep_size")
                                  .Attr<xla::ffi::Span<const int64_t>>("ep_groups")
                                  .Attr<int64_t>("timeout_ms"));
#pragma GCC visibility pop
