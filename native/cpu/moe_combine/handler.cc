// Question: are the buffers of a combine sound, and which rank is it?
#include <cstdint>

#include "common/moe_shapes.h"
#include "cpu/common/convert.h"
#include "cpu/exchange/call_site.h"
#include "cpu/exchange/member.h"
#include "cpu/moe_combine/launch.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

ffi::Future Combine(const MoeCall& call, CombineBuffers b) {
  Attendance member;
  if (auto complaint = FindMember(call, member)) return Refused(call, *complaint);
  if (auto complaint = CheckCombine(b, call.ep_size)) {
    return RefuseForAll(call, member, *complaint);
  }
  const MoeHandle handle{b.rank_prefix.typed_data(),
                         b.channel_prefix.typed_data(),
                         nullptr,
                         b.in_rank.typed_data(),
                         b.send_head.typed_data(),
                         b.send_head.dimensions()[0],
                         call.ep_size,
                         b.channel_prefix.dimensions()[1]};
  if (auto complaint = CheckSent(handle, member.rank)) {
    return RefuseForAll(call, member, *complaint);
  }
  const int64_t hidden = b.x.dimensions()[1], top_k = b.topk_weights.dimensions()[1];
  const CombineSource source{b.x.untyped_data(), b.topk_weights.typed_data()};
  const CombineTarget target{b.combined_x->untyped_data(), b.combined_weights->typed_data()};
  switch (b.x.element_type()) {
    case ffi::DataType::F32:
      return LaunchCombine<float>(member, handle, hidden, top_k, source, target);
    case ffi::DataType::BF16:
      return LaunchCombine<BFloat16>(member, handle, hidden, top_k, source, target);
    case ffi::DataType::F16:
      return LaunchCombine<Float16>(member, handle, hidden, top_k, source, target);
    default:
      return RefuseForAll(call, member, "x must be float32, bfloat16 or float16");
  }
}

ffi::Future CombineImpl(ffi::RunId run, int32_t device, CallSite* site, ffi::AnyBuffer x,
                        FloatMatrix topk_weights, Int32Matrix rank_prefix,
                        Int32Matrix channel_prefix, BoolMatrix in_rank, Int32Matrix send_head,
                        Out<ffi::AnyBuffer> combined_x, Out<FloatMatrix> combined_weights,
                        int64_t ep_size, ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const MoeCall call{
      "moeprof_moe_combine_inproc", run, device, site, ep_size, ep_groups, timeout_ms};
  return Guarded(call, [&] {
    return Combine(call, {x, topk_weights, rank_prefix, channel_prefix, in_rank, send_head,
                          combined_x, combined_weights});
  });
}

}  // namespace
}  // namespace moeprof

MOEPROF_DEFINE_CALL_SITE_HANDLER(
    MoeprofMoeCombineInproc, moeprof::CombineImpl,
    moeprof::BindCombine(xla::ffi::Ffi::Bind()
                             .Ctx<xla::ffi::RunId>()
                             .Ctx<xla::ffi::DeviceOrdinal>()
                             .Ctx<xla::ffi::State<moeprof::CallSite>>()));
