// Question: are the buffers of a cached dispatch sound, and which rank is it?
#include <cstdint>

#include "common/moe_buffers.h"
#include "cpu/call_site.h"
#include "cpu/moe_cached_dispatch_launch.h"
#include "cpu/moe_member.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

ffi::Future CachedDispatch(const MoeCall& call, ffi::AnyBuffer x, Int32Matrix rank_prefix,
                           Int32Vector recv_src_idx, ffi::AnyBuffer& recv_x) {
  Attendance member;
  if (auto complaint = FindMember(call, member)) return Refused(call, *complaint);
  if (x.dimensions().size() != 2 || x.element_type() != recv_x.element_type()) {
    return RefuseForAll(call, member, "x must be [tokens, hidden] with the dtype of the result");
  }
  const int64_t tokens = x.dimensions()[0], rows = tokens * call.ep_size;
  if (!HasShape(rank_prefix, call.ep_size, call.ep_size) || !HasLength(recv_src_idx, rows) ||
      !HasShape(recv_x, rows, x.dimensions()[1])) {
    return RefuseForAll(call, member, "buffers do not fit x and EP");
  }
  const MoeHandle handle{rank_prefix.typed_data(),
                         nullptr,
                         recv_src_idx.typed_data(),
                         nullptr,
                         nullptr,
                         tokens,
                         call.ep_size,
                         0};
  if (auto complaint = CheckReceived(handle, member.rank)) {
    return RefuseForAll(call, member, *complaint);
  }
  return LaunchCachedDispatch(member, handle, RowBytes(x),
                              static_cast<const uint8_t*>(x.untyped_data()),
                              static_cast<uint8_t*>(recv_x.untyped_data()));
}

ffi::Future CachedDispatchImpl(ffi::RunId run, int32_t device, CallSite* site, ffi::AnyBuffer x,
                               Int32Matrix rank_prefix, Int32Vector recv_src_idx,
                               Out<ffi::AnyBuffer> recv_x, int64_t ep_size,
                               ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const MoeCall call{
      "moeprof_moe_cached_dispatch_inproc", run, device, site, ep_size, ep_groups, timeout_ms};
  return Guarded(call, [&] { return CachedDispatch(call, x, rank_prefix, recv_src_idx, *recv_x); });
}

}  // namespace
}  // namespace moeprof

MOEPROF_DEFINE_CALL_SITE_HANDLER(MoeprofMoeCachedDispatchInproc, moeprof::CachedDispatchImpl,
                                 xla::ffi::Ffi::Bind()
                                     .Ctx<xla::ffi::RunId>()
                                     .Ctx<xla::ffi::DeviceOrdinal>()
                                     .Ctx<xla::ffi::State<moeprof::CallSite>>()
                                     .Arg<xla::ffi::AnyBuffer>()   // x [T, hidden]
                                     .Arg<moeprof::Int32Matrix>()  // rank_prefix_matrix [EP, EP]
                                     .Arg<moeprof::Int32Vector>()  // recv_src_idx [T * EP]
                                     .Ret<xla::ffi::AnyBuffer>()   // recv_x [T * EP, hidden]
                                     .Attr<int64_t>("ep_size")
                                     .Attr<xla::ffi::Span<const int64_t>>("ep_groups")
                                     .Attr<int64_t>("timeout_ms"));
