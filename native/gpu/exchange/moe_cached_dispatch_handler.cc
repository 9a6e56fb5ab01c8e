// Question: are the buffers of a cached dispatch on the GPU sound, and what do the others see?
#include <cstdint>
#include <optional>
#include <string>

#include "common/moe_shapes.h"
#include "gpu/exchange/exchange_handler.h"
#include "gpu/exchange/limits.h"
#include "gpu/exchange/moe_cached_dispatch_launch.h"
#include "gpu/exchange/unused_rows.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlocks = 64;  // the handle's operands do not tell the channels

// Rows that are no multiple of 16 bytes, as the gradient of routing weights has them, go by 4.
int64_t WordBytes(int64_t row_bytes) { return row_bytes % 16 == 0 ? 16 : 4; }

std::optional<std::string> Check(const HandlerCall& call, CachedDispatchBuffers& b) {
  if (auto complaint = CheckCachedDispatch(b, call.ep_size)) return complaint;
  const int64_t row_bytes = RowBytes(b.x);
  if (auto complaint = CheckLimits(b.x.dimensions()[0] * call.ep_size, 0)) return complaint;
  return CheckRowBytes(row_bytes, WordBytes(row_bytes));
}

PlannedCall Plan(const HandlerCall& call, CachedDispatchBuffers b) {
  PlannedCall planned;
  if (auto complaint = Check(call, b)) {
    planned.complaint = *complaint;
    return planned;
  }
  const int64_t tokens = b.x.dimensions()[0], row_bytes = RowBytes(b.x);
  CachedDispatchArgs args{};
  args.tokens = static_cast<int32_t>(tokens);
  args.rank_prefix = b.rank_prefix.typed_data();
  args.src_idx = b.recv_src_idx.typed_data();
  args.recv_x = b.recv_x->untyped_data();
  args.unused_bits = UnusedRowBits();
  args.word_bytes = static_cast<int32_t>(WordBytes(row_bytes));
  args.words = static_cast<int32_t>(row_bytes / args.word_bytes);
  planned.call = {
      NameOf(call.op), {tokens, row_bytes}, {AsPeerBuffer(b.x.untyped_data(), b.x.size_bytes())}};
  const int blocks = ExchangeBlocks(call.device, kBlocks);
  planned.launch = [args, blocks, stream = call.stream](const ExchangeCall& exchange,
                                                        const Met& met) mutable {
    args.call = exchange;
    for (int r = 0; r < exchange.ranks; ++r) {
      args.x[r] = met.pointers[r][0];
    }
    return LaunchCachedDispatch(stream, args, blocks);
  };
  return planned;
}

ffi::Error CachedDispatch(gpuStream_t stream, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                          Int32Matrix rank_prefix, Int32Vector recv_src_idx,
                          Out<ffi::AnyBuffer> recv_x, int64_t ep_size,
                          ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const HandlerCall call{
      GpuOp::kCachedDispatch, stream, device, run, ep_size, ep_groups, timeout_ms};
  return RunExchange(call, [&] { return Plan(call, {x, rank_prefix, recv_src_idx, recv_x}); });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGpuMoeCachedDispatch, moeprof::gpu::CachedDispatch,
    moeprof::BindCachedDispatch(xla::ffi::Ffi::Bind()
                                    .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                                    .Ctx<xla::ffi::DeviceOrdinal>()
                                    .Ctx<xla::ffi::RunId>()));
#pragma GCC visibility pop
