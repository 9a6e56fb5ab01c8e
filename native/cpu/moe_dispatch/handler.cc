// Question: are the buffers of a dispatch sound, and which rank is it?
#include <cstdint>

#include "common/moe_shapes.h"
#include "cpu/exchange/call_site.h"
#include "cpu/exchange/member.h"
#include "cpu/moe_dispatch/launch.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

ffi::Future Dispatch(const MoeCall& call, const DispatchInputs& in, DispatchOutputs out,
                     int64_t num_experts) {
  Attendance member;
  if (auto complaint = FindMember(call, member)) return Refused(call, *complaint);
  if (auto complaint = CheckDispatch(in, out, call.ep_size, num_experts)) {
    return RefuseForAll(call, member, *complaint);
  }
  const DispatchSizes sizes{in.x.dimensions()[0],
                            RowBytes(in.x),
                            in.scales.dimensions()[1],
                            in.topk_idx.dimensions()[1],
                            call.ep_size,
                            num_experts / call.ep_size,
                            out.channel_prefix->dimensions()[1]};
  if (auto complaint = CheckRouting(sizes, in.topk_idx.typed_data())) {
    return RefuseForAll(call, member, *complaint);
  }
  const DispatchSource source{static_cast<const uint8_t*>(in.x.untyped_data()),
                              in.scales.typed_data(),
                              in.topk_idx.typed_data(),
                              in.topk_weights.typed_data(),
                              out.in_rank->typed_data(),
                              out.channel_prefix->typed_data()};
  const SendPlan plan{out.in_rank->typed_data(), out.channel_prefix->typed_data(),
                      out.send_head->typed_data()};
  const DispatchTarget target{static_cast<uint8_t*>(out.recv_x->untyped_data()),
                              out.recv_scales->typed_data(),
                              out.recv_topk_idx->typed_data(),
                              out.recv_topk_weights->typed_data(),
                              out.rank_prefix->typed_data(),
                              out.recv_channel_prefix->typed_data(),
                              out.recv_src_idx->typed_data()};
  return LaunchDispatch(member, sizes, source, plan, target);
}

ffi::Future DispatchImpl(ffi::RunId run, int32_t device, CallSite* site, ffi::AnyBuffer x,
                         FloatMatrix scales, Int32Matrix topk_idx, FloatMatrix topk_weights,
                         Out<ffi::AnyBuffer> recv_x, Out<FloatMatrix> recv_scales,
                         Out<Int32Matrix> recv_topk_idx, Out<FloatMatrix> recv_topk_weights,
                         Out<Int32Matrix> rank_prefix, Out<Int32Matrix> channel_prefix,
                         Out<Int32Matrix> recv_channel_prefix, Out<Int32Vector> recv_src_idx,
                         Out<BoolMatrix> in_rank, Out<Int32Matrix> send_head, int64_t num_experts,
                         int64_t ep_size, ffi::Span<const int64_t> ep_groups, int64_t timeout_ms) {
  const MoeCall call{
      "moeprof_moe_dispatch_inproc", run, device, site, ep_size, ep_groups, timeout_ms};
  return Guarded(call, [&] {
    return Dispatch(call, {x, scales, topk_idx, topk_weights},
                    {recv_x, recv_scales, recv_topk_idx, recv_topk_weights, rank_prefix,
                     channel_prefix, recv_channel_prefix, recv_src_idx, in_rank, send_head},
                    num_experts);
  });
}

}  // namespace
}  // namespace moeprof

MOEPROF_DEFINE_CALL_SITE_HANDLER(
    MoeprofMoeDispatchInproc, moeprof::DispatchImpl,
    moeprof::BindDispatch(xla::ffi::Ffi::Bind()
                              .Ctx<xla::ffi::RunId>()
                              .Ctx<xla::ffi::DeviceOrdinal>()
                              .Ctx<xla::ffi::State<moeprof::CallSite>>()));
