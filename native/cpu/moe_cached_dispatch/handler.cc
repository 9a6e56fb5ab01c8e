// Question: are the buffers of a cached dispatch sound, and which rank is it?
#include <cstdint>

#include "common/moe_shapes.h"
#include "cpu/exchange/call_site.h"
#include "cpu/exchange/member.h"
#include "cpu/moe_cached_dispatch/launch.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

ffi::Future CachedDispatch(const MoeCall& call, CachedDispatchBuffers b) {
  Attendance member;
  if (auto complaint = FindMember(call, member)) return Refused(call, *complaint);
  if (auto complaint = CheckCachedDispatch(b, call.ep_size)) {
    return RefuseForAll(call, member, *complaint);
  }
  const MoeHandle handle{b.rank_prefix.typed_data(),
                         nullptr,
                         b.recv_src_idx.typed_data(),
                         nullptr,
                         nullptr,
                         b.x.dimensions()[0],
                         call.ep_size,
                         0};
  if (auto complaint = CheckReceived(handle, member.rank)) {
    return RefuseForAll(call, member, *complaint);
  }
  return LaunchCachedDispatch(member, handle, RowBytes(b.x),
                              static_cast<const uint8_t*>(b.x.untyped_data()),
                              static_cast<uint8_t*>(b.recv_x->untyped_data()));
}

ffi::Future CachedDispatchImpl(ffi::RunId run, int32_t device, CallSite* site, ffi::AnyBuffer x,
                               Int32Matrix rank_prefix, Int32Vector recv_src_idx,
                               Out<ffi::AnyBuffer> recv_x, int64_t ep_size,
                               ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const MoeCall call{
      "moeprof_moe_cached_dispatch_inproc", run, device, site, ep_size, ep_groups, timeout_ms};
  return Guarded(call,
                 [&] { return CachedDispatch(call, {x, rank_prefix, recv_src_idx, recv_x}); });
}

}  // namespace
}  // namespace moeprof

MOEPROF_DEFINE_CALL_SITE_HANDLER(
    MoeprofMoeCachedDispatchInproc, moeprof::CachedDispatchImpl,
    moeprof::BindCachedDispatch(xla::ffi::Ffi::Bind()
                                    .Ctx<xla::ffi::RunId>()
                                    .Ctx<xla::ffi::DeviceOrdinal>()
                                    .Ctx<xla::ffi::State<moeprof::CallSite>>()));
