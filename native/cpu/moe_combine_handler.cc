// Question: are the buffers of a combine sound, and which rank is it?
#include <cstdint>

#include "common/moe_buffers.h"
#include "cpu/call_site.h"
#include "cpu/convert.h"
#include "cpu/moe_combine_launch.h"
#include "cpu/moe_member.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

struct CombineBuffers {
  ffi::AnyBuffer x;
  FloatMatrix topk_weights;
  Int32Matrix rank_prefix;
  Int32Matrix channel_prefix;
  BoolMatrix in_rank;
  Int32Matrix send_head;
  Out<ffi::AnyBuffer> combined_x;
  Out<FloatMatrix> combined_weights;
};

bool Fit(CombineBuffers& b, const MoeHandle& handle, int64_t hidden, int64_t top_k) {
  return handle.tokens > 0 && handle.channels > 0 && HasShape(b.x, handle.rows(), hidden) &&
         HasShape(b.topk_weights, handle.rows(), top_k) &&
         HasShape(b.rank_prefix, handle.ranks, handle.ranks) &&
         HasShape(b.channel_prefix, handle.ranks, handle.channels) &&
         HasShape(b.in_rank, handle.tokens, handle.ranks) &&
         HasShape(b.send_head, handle.tokens, handle.ranks) &&
         HasShape(*b.combined_x, handle.tokens, hidden) &&
         HasShape(*b.combined_weights, handle.tokens, top_k) &&
         b.x.element_type() == b.combined_x->element_type();
}

ffi::Future Combine(const MoeCall& call, CombineBuffers b) {
  Attendance member;
  if (auto complaint = FindMember(call, member)) return Refused(call, *complaint);
  const MoeHandle handle{b.rank_prefix.typed_data(),
                         b.channel_prefix.typed_data(),
                         nullptr,
                         b.in_rank.typed_data(),
                         b.send_head.typed_data(),
                         b.send_head.dimensions()[0],
                         call.ep_size,
                         b.channel_prefix.dimensions()[1]};
  const int64_t top_k = b.topk_weights.dimensions()[1];
  if (b.x.dimensions().size() != 2 || !Fit(b, handle, b.x.dimensions()[1], top_k)) {
    return RefuseForAll(call, member, "buffers do not fit the handle and EP");
  }
  if (auto complaint = CheckSent(handle, member.rank)) {
    return RefuseForAll(call, member, *complaint);
  }
  const int64_t hidden = b.x.dimensions()[1];
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

MOEPROF_DEFINE_CALL_SITE_HANDLER(MoeprofMoeCombineInproc, moeprof::CombineImpl,
                                 xla::ffi::Ffi::Bind()
                                     .Ctx<xla::ffi::RunId>()
                                     .Ctx<xla::ffi::DeviceOrdinal>()
                                     .Ctx<xla::ffi::State<moeprof::CallSite>>()
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
