// Question: do the buffers of a dispatch or combine fit each other?
//
// T tokens per rank, K slots per token, EP ranks, C channels, Rw = T * EP rows at most. What
// kernels refuse beyond that is for their handlers to check.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/moe_buffers.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

struct DispatchInputs {
  xla::ffi::AnyBuffer x;     // [T, hidden]
  FloatMatrix scales;        // [T, scales]
  Int32Matrix topk_idx;      // [T, K]
  FloatMatrix topk_weights;  // [T, K]
};

struct DispatchOutputs {
  Out<xla::ffi::AnyBuffer> recv_x;       // [Rw, hidden]
  Out<FloatMatrix> recv_scales;          // [Rw, scales]
  Out<Int32Matrix> recv_topk_idx;        // [Rw, K]
  Out<FloatMatrix> recv_topk_weights;    // [Rw, K]
  Out<Int32Matrix> rank_prefix;          // [EP, EP]
  Out<Int32Matrix> channel_prefix;       // [EP, C]
  Out<Int32Matrix> recv_channel_prefix;  // [EP, C]
  Out<Int32Vector> recv_src_idx;         // [Rw]
  Out<BoolMatrix> in_rank;               // [T, EP]
  Out<Int32Matrix> send_head;            // [T, EP]
};

struct CachedDispatchBuffers {
  xla::ffi::AnyBuffer x;            // [T, hidden]
  Int32Matrix rank_prefix;          // [EP, EP]
  Int32Vector recv_src_idx;         // [Rw]
  Out<xla::ffi::AnyBuffer> recv_x;  // [Rw, hidden]
};

struct CombineBuffers {
  xla::ffi::AnyBuffer x;                // [Rw, hidden]
  FloatMatrix topk_weights;             // [Rw, K]
  Int32Matrix rank_prefix;              // [EP, EP]
  Int32Matrix channel_prefix;           // [EP, C]
  BoolMatrix in_rank;                   // [T, EP]
  Int32Matrix send_head;                // [T, EP]
  Out<xla::ffi::AnyBuffer> combined_x;  // [T, hidden]
  Out<FloatMatrix> combined_weights;    // [T, K]
};

// The complaint where buffers do not fit a group of `ranks`, or the experts cannot be shared out.
std::optional<std::string> CheckDispatch(const DispatchInputs& in, DispatchOutputs& out,
                                         int64_t ranks, int64_t num_experts);
std::optional<std::string> CheckCachedDispatch(CachedDispatchBuffers& buffers, int64_t ranks);
std::optional<std::string> CheckCombine(CombineBuffers& buffers, int64_t ranks);

// The operands and attributes, in the order in which handlers take them, after what `binding` has.
template <typename Binding>
auto BindGroup(Binding&& binding) {
  return std::move(binding)
      .template Attr<int64_t>("ep_size")
      .template Attr<xla::ffi::Span<const int64_t>>("ep_groups")
      .template Attr<int64_t>("timeout_ms");
}
template <typename Binding>
auto BindDispatch(Binding&& binding) {
  return BindGroup(std::move(binding)
                       .template Arg<xla::ffi::AnyBuffer>()  // as DispatchInputs
                       .template Arg<FloatMatrix>()
                       .template Arg<Int32Matrix>()
                       .template Arg<FloatMatrix>()
                       .template Ret<xla::ffi::AnyBuffer>()  // as DispatchOutputs
                       .template Ret<FloatMatrix>()
                       .template Ret<Int32Matrix>()
                       .template Ret<FloatMatrix>()
                       .template Ret<Int32Matrix>()
                       .template Ret<Int32Matrix>()
                       .template Ret<Int32Matrix>()
                       .template Ret<Int32Vector>()
                       .template Ret<BoolMatrix>()
                       .template Ret<Int32Matrix>()
                       .template Attr<int64_t>("num_experts"));
}
template <typename Binding>
auto BindCachedDispatch(Binding&& binding) {
  return BindGroup(std::move(binding)
                       .template Arg<xla::ffi::AnyBuffer>()  // as CachedDispatchBuffers
                       .template Arg<Int32Matrix>()
                       .template Arg<Int32Vector>()
                       .template Ret<xla::ffi::AnyBuffer>());
}
template <typename Binding>
auto BindCombine(Binding&& binding) {
  return BindGroup(std::move(binding)
                       .template Arg<xla::ffi::AnyBuffer>()  // as CombineBuffers
                       .template Arg<FloatMatrix>()
                       .template Arg<Int32Matrix>()
                       .template Arg<Int32Matrix>()
                       .template Arg<BoolMatrix>()
                       .template Arg<Int32Matrix>()
                       .template Ret<xla::ffi::AnyBuffer>()
                       .template Ret<FloatMatrix>());
}

}  // namespace moeprof
