// Question: are the buffers of a dispatch on the GPU sound, and what do the other ranks see of
// them?
#include <cstdint>
#include <optional>
#include <string>

#include "common/moe_shapes.h"
#include "gpu/exchange/exchange_handler.h"
#include "gpu/exchange/limits.h"
#include "gpu/exchange/moe_dispatch_launch.h"
#include "gpu/exchange/unused_rows.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

// Two for a combine; writing into peers' memory is 2 to 3 % faster with half as many again: 96
// blocks against 64 at 4096 and 8192 tokens (docs/gpu.md, the exchange kernels alone).
constexpr int64_t kBlocksPerChannel = 3;

template <typename Buffer>
PeerBuffer Shown(Buffer& buffer) {
  return AsPeerBuffer(buffer->untyped_data(), buffer->size_bytes());
}

DispatchResult ResultOf(const std::vector<void*>& shown) {
  return {static_cast<uint4*>(shown[0]),   static_cast<float*>(shown[1]),
          static_cast<int32_t*>(shown[2]), static_cast<float*>(shown[3]),
          static_cast<int32_t*>(shown[4]), static_cast<int32_t*>(shown[5])};
}

std::optional<std::string> Check(const HandlerCall& call, const DispatchInputs& in,
                                 DispatchOutputs& out, int64_t num_experts) {
  if (auto complaint = CheckDispatch(in, out, call.ep_size, num_experts)) return complaint;
  const int64_t rows = in.x.dimensions()[0] * call.ep_size;
  if (auto complaint = CheckLimits(rows, in.topk_idx.dimensions()[1])) return complaint;
  return CheckRowBytes(RowBytes(in.x), sizeof(uint4));
}

PlannedCall Plan(const HandlerCall& call, const DispatchInputs& in, DispatchOutputs out,
                 int64_t num_experts) {
  PlannedCall planned;
  if (auto complaint = Check(call, in, out, num_experts)) {
    planned.complaint = *complaint;
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
  args.unused_bits = UnusedRowBits();
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
  return RunExchange(call, [&] {
    return Plan(call, {x, scales, topk_idx, topk_weights},
                {recv_x, recv_scales, recv_topk_idx, recv_topk_weights, rank_prefix, channel_prefix,
                 recv_channel_prefix, recv_src_idx, in_rank, send_head},
                num_experts);
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGpuMoeDispatch, moeprof::gpu::Dispatch,
    moeprof::BindDispatch(xla::ffi::Ffi::Bind()
                              .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                              .Ctx<xla::ffi::DeviceOrdinal>()
                              .Ctx<xla::ffi::RunId>()));
#pragma GCC visibility pop
