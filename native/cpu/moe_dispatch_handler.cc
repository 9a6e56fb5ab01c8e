// Question: are the buffers of a dispatch sound, and which rank is it?
#include <cstdint>

#include "common/moe_buffers.h"
#include "cpu/call_site.h"
#include "cpu/moe_dispatch_launch.h"
#include "cpu/moe_member.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

struct DispatchInputs {
  ffi::AnyBuffer x;
  FloatMatrix scales;
  Int32Matrix topk_idx;
  FloatMatrix topk_weights;
};

struct DispatchOutputs {
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

bool Fit(const DispatchInputs& in, DispatchOutputs& out, const DispatchSizes& sizes) {
  const int64_t tokens = sizes.tokens, rows = sizes.rows(), ranks = sizes.ranks;
  const int64_t hidden = in.x.dimensions()[1];
  return tokens > 0 && sizes.channels > 0 && HasShape(in.scales, tokens, sizes.scales) &&
         HasShape(in.topk_idx, tokens, sizes.top_k) &&
         HasShape(in.topk_weights, tokens, sizes.top_k) && HasShape(*out.recv_x, rows, hidden) &&
         HasShape(*out.recv_scales, rows, sizes.scales) &&
         HasShape(*out.recv_topk_idx, rows, sizes.top_k) &&
         HasShape(*out.recv_topk_weights, rows, sizes.top_k) &&
         HasShape(*out.rank_prefix, ranks, ranks) &&
         HasShape(*out.channel_prefix, ranks, sizes.channels) &&
         HasShape(*out.recv_channel_prefix, ranks, sizes.channels) &&
         HasLength(*out.recv_src_idx, rows) && HasShape(*out.in_rank, tokens, ranks) &&
         HasShape(*out.send_head, tokens, ranks);
}

ffi::Future Dispatch(const MoeCall& call, const DispatchInputs& in, DispatchOutputs out,
                     int64_t num_experts) {
  Attendance member;
  if (auto complaint = FindMember(call, member)) return Refused(call, *complaint);
  if (in.x.dimensions().size() != 2 || num_experts <= 0 || num_experts % call.ep_size != 0) {
    return RefuseForAll(call, member, "x must be [tokens, hidden], num_experts a multiple of EP");
  }
  const DispatchSizes sizes{in.x.dimensions()[0],
                            RowBytes(in.x),
                            in.scales.dimensions()[1],
                            in.topk_idx.dimensions()[1],
                            call.ep_size,
                            num_experts / call.ep_size,
                            out.channel_prefix->dimensions()[1]};
  if (!Fit(in, out, sizes)) return RefuseForAll(call, member, "buffers do not fit x and EP");
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

MOEPROF_DEFINE_CALL_SITE_HANDLER(MoeprofMoeDispatchInproc, moeprof::DispatchImpl,
                                 xla::ffi::Ffi::Bind()
                                     .Ctx<xla::ffi::RunId>()
                                     .Ctx<xla::ffi::DeviceOrdinal>()
                                     .Ctx<xla::ffi::State<moeprof::CallSite>>()
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
