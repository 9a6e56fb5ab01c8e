// Question: do the buffers of a grouped GEMM call fit each other, and which sizes do they say?
//
// What kernels refuse beyond that, sizes past their limits say, is for their handlers to check.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "xla/ffi/api/ffi.h"

namespace moeprof {

using Complaint = std::string;

// group_lens [lens_batch, groups] and group_offs [offs_batch, groups + 1], or [1, 0] where there
// are none. Both batches are 1 or that of the call.
struct LengthsShape {
  int64_t lens_batch, offs_batch, groups;
  bool has_offs;
};

// a [a_batch, rows, k], or [a_batch, k, rows] where trans_a; b [b_batch, groups, k, n], or
// [b_batch, groups, n, k] where trans_b; out [batch, rows, n]. a_batch and b_batch are 1 or batch.
struct ForwardShape {
  int64_t a_batch, b_batch, batch, rows, k, n, groups;
  LengthsShape lengths;
};

// lhs [lhs_batch, rows, m], rhs [rhs_batch, rows, n], out [batch, groups, m, n]. lhs_batch and
// rhs_batch are 1 or batch.
struct VariableKShape {
  int64_t lhs_batch, rhs_batch, batch, rows, m, n, groups;
  LengthsShape lengths;
};

// The buffers of a product; `a` and `b` of the variable-K one are lhs and rhs.
struct ProductBuffers {
  xla::ffi::AnyBuffer a, b, lens, offs, out;
};

std::variant<ForwardShape, Complaint> ReadForward(const ProductBuffers& buffers, bool trans_a,
                                                  bool trans_b);

// The output has the dtype of lhs and rhs, or float32.
std::variant<VariableKShape, Complaint> ReadVariableK(const ProductBuffers& buffers);

// Which element of an operand belongs to element `i` of the batch.
constexpr int64_t ElementOf(int64_t operand_batch, int64_t i) { return operand_batch == 1 ? 0 : i; }

// The operands, in the order in which handlers take them, after what `binding` has.
template <typename Binding>
auto BindProduct(Binding&& binding) {
  return std::move(binding)
      .template Arg<xla::ffi::AnyBuffer>()   // a or lhs
      .template Arg<xla::ffi::AnyBuffer>()   // b or rhs
      .template Arg<xla::ffi::AnyBuffer>()   // group_lens
      .template Arg<xla::ffi::AnyBuffer>()   // group_offs
      .template Ret<xla::ffi::AnyBuffer>();  // out
}
template <typename Binding>
auto BindForward(Binding&& binding) {
  return BindProduct(std::move(binding))
      .template Attr<bool>("trans_a")
      .template Attr<bool>("trans_b")
      .template Attr<int64_t>("max_threads");
}
template <typename Binding>
auto BindVariableK(Binding&& binding) {
  return BindProduct(std::move(binding)).template Attr<int64_t>("max_threads");
}

}  // namespace moeprof
