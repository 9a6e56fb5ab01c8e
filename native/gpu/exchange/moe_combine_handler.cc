// Question: are the buffers of a combine on the GPU sound, and what do the other ranks see of them?
#include <cstdint>
#include <optional>
#include <string>

#include "common/moe_shapes.h"
#include "gpu/exchange/exchange_handler.h"
#include "gpu/exchange/limits.h"
#include "gpu/exchange/moe_combine_launch.h"
#include "gpu/runtime/ffi_element_type.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

// Rows of float32 that are no multiple of 16 bytes, as the gradient of routing weights has them, go
// by 4.
bool IsNarrow(const ffi::AnyBuffer& x) {
  return x.element_type() == ffi::DataType::F32 && RowBytes(x) % 16 != 0;
}

std::optional<std::string> Check(const HandlerCall& call, CombineBuffers& b) {
  if (auto complaint = CheckCombine(b, call.ep_size)) return complaint;
  if (!ElementTypeOf(b.x.element_type())) return "x must be float32, bfloat16 or float16";
  const int64_t rows = b.send_head.dimensions()[0] * call.ep_size;
  if (auto complaint = CheckLimits(rows, b.topk_weights.dimensions()[1])) return complaint;
  return CheckRowBytes(RowBytes(b.x), IsNarrow(b.x) ? 4 : 16);
}

PlannedCall Plan(const HandlerCall& call, CombineBuffers b) {
  PlannedCall planned;
  if (auto complaint = Check(call, b)) {
    planned.complaint = *complaint;
    return planned;
  }
  const int64_t row_bytes = RowBytes(b.x);
  CombineArgs args{};
  args.type = *ElementTypeOf(b.x.element_type());
  args.is_narrow = IsNarrow(b.x);
  args.tokens = static_cast<int32_t>(b.send_head.dimensions()[0]);
  args.words = static_cast<int32_t>(row_bytes / (args.is_narrow ? 4 : 16));
  args.top_k = static_cast<int32_t>(b.topk_weights.dimensions()[1]);
  args.channels = static_cast<int32_t>(b.channel_prefix.dimensions()[1]);
  args.rank_prefix = b.rank_prefix.typed_data();
  args.channel_prefix = b.channel_prefix.typed_data();
  args.in_rank = b.in_rank.typed_data();
  args.send_head = b.send_head.typed_data();
  args.combined_x = static_cast<uint4*>(b.combined_x->untyped_data());
  args.combined_weights = b.combined_weights->typed_data();
  planned.call = {
      NameOf(call.op),
      {args.tokens, row_bytes, static_cast<int64_t>(args.type), args.top_k, args.channels},
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
  return RunExchange(call, [&] {
    return Plan(call, {x, topk_weights, rank_prefix, channel_prefix, in_rank, send_head, combined_x,
                       combined_weights});
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGpuMoeCombine, moeprof::gpu::Combine,
    moeprof::BindCombine(xla::ffi::Ffi::Bind()
                             .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                             .Ctx<xla::ffi::DeviceOrdinal>()
                             .Ctx<xla::ffi::RunId>()));
#pragma GCC visibility pop
