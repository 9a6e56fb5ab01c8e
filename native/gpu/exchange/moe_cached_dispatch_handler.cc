// Question: are the buffers of a cached dispatch on the GPU sound, and what do the others see?
#include <cstdint>

#include "common/moe_buffers.h"
#include "gpu/exchange/exchange_handler.h"
#include "gpu/exchange/moe_cached_dispatch_launch.h"
#include "gpu/exchange/unused_rows.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kBlocks = 64;  // the handle's operands do not tell the channels

PlannedCall Plan(const HandlerCall& call, ffi::AnyBuffer x, Int32Matrix rank_prefix,
                 Int32Vector recv_src_idx, ffi::AnyBuffer& recv_x) {
  PlannedCall planned;
  if (x.dimensions().size() != 2 || x.element_type() != recv_x.element_type()) {
    planned.complaint = "x must be [tokens, hidden] with the dtype of the result";
    return planned;
  }
  const int64_t tokens = x.dimensions()[0], rows = tokens * call.ep_size;
  if (!HasShape(rank_prefix, call.ep_size, call.ep_size) || !HasLength(recv_src_idx, rows) ||
      !HasShape(recv_x, rows, x.dimensions()[1]) || rows > INT32_MAX) {
    planned.complaint = "buffers do not fit x and EP";
    return planned;
  }
  CachedDispatchArgs args{};
  args.tokens = static_cast<int32_t>(tokens);
  args.rank_prefix = rank_prefix.typed_data();
  args.src_idx = recv_src_idx.typed_data();
  args.recv_x = recv_x.untyped_data();
  args.unused = UnusedRowBits();
  const int64_t row_bytes = RowBytes(x);
  args.word_bytes = row_bytes % 16 == 0 ? 16 : 4;
  if (row_bytes % args.word_bytes != 0) {
    planned.complaint = "rows must be a multiple of 4 bytes, found " + std::to_string(row_bytes);
    return planned;
  }
  args.words = static_cast<int32_t>(row_bytes / args.word_bytes);
  planned.call = {
      NameOf(call.op), {tokens, row_bytes}, {AsPeerBuffer(x.untyped_data(), x.size_bytes())}};
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
  return RunExchange(
      call, [&](const PeerSeat&) { return Plan(call, x, rank_prefix, recv_src_idx, *recv_x); });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGpuMoeCachedDispatch, moeprof::gpu::CachedDispatch,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Ctx<xla::ffi::RunId>()
                                  .Arg<xla::ffi::AnyBuffer>()   // x [T, width]
                                  .Arg<moeprof::Int32Matrix>()  // rank_prefix_matrix [EP, EP]
                                  .Arg<moeprof::Int32Vector>()  // recv_src_idx [T * EP]
                                  .Ret<xla::ffi::AnyBuffer>()   // recv_x [T * EP, width]
                                  .Attr<int64_t>("ep_size")
                                  .Attr<xla::ffi::Span<const int64_t>>("ep_groups")
                                  .Attr<int64_t>("timeout_ms"));
#pragma GCC visibility pop
