// Question: are the buffers of a variable-K grouped GEMM call sound, and which kernel runs?
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/caught.h"
#include "common/grouped_gemm_shapes.h"
#include "common/sides.h"
#include "cpu/common/convert.h"
#include "cpu/common/poison.h"
#include "cpu/grouped_gemm_variable_k/launch.h"
#include "cpu/products/gemm_tile.h"
#include "cpu/products/group_offsets.h"
#include "cpu/products/poison_copies.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "moeprof_grouped_gemm_variable_k";

ffi::Error Refuse(const std::string& complaint) {
  return ffi::Error::InvalidArgument(std::string(kName) + ": " + complaint);
}

template <typename T, typename Out>
ffi::Error Run(ffi::ThreadPool& pool, const VariableKGemm<void>& shape, const GroupOffsets& offsets,
               const ProductBuffers& buffers, int64_t max_threads) {
  ffi::AnyBuffer out = buffers.out;
  VariableKGemm<T, Out> op{static_cast<const T*>(buffers.a.untyped_data()),
                           static_cast<const T*>(buffers.b.untyped_data()),
                           static_cast<Out*>(out.untyped_data()),
                           shape.lhs_batch,
                           shape.rhs_batch,
                           shape.batch,
                           shape.rows,
                           shape.m,
                           shape.n,
                           shape.groups};
  const bool poison = PoisonEnabled();
  std::vector<T> poisoned_lhs, poisoned_rhs;
  if (poison) {
    poisoned_lhs =
        CopyWithPoisonedTail<T>({op.lhs, op.lhs_batch, op.rows, op.m, false}, offsets, op.batch);
    poisoned_rhs =
        CopyWithPoisonedTail<T>({op.rhs, op.rhs_batch, op.rows, op.n, false}, offsets, op.batch);
    op.lhs = poisoned_lhs.data();
    op.rhs = poisoned_rhs.data();
    PoisonOutput(op.out, out.size_bytes());
  }
  if (!LaunchVariableKGemm(pool, op, offsets, max_threads)) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::string(kName) + ": out of memory");
  }
  return poison ? CheckFullyWritten(kName, out) : ffi::Error::Success();
}

ffi::Error CheckedVariableK(ffi::ThreadPool pool, const ProductBuffers& buffers,
                            int64_t max_threads) {
  const auto read = ReadVariableK(buffers);
  if (const auto* complaint = std::get_if<Complaint>(&read)) return Refuse(*complaint);
  const auto& shape = std::get<VariableKShape>(read);
  if (auto complaint = CheckSides({shape.rows, shape.m, shape.n}, kLongestSide))
    return Refuse(*complaint);
  GroupOffsets offsets;
  if (auto fault = offsets.Read(buffers.lens, buffers.offs, shape.lengths, shape.rows)) {
    return Refuse(*fault);
  }
  const VariableKGemm<void> op{nullptr,     nullptr,    nullptr, shape.lhs_batch, shape.rhs_batch,
                               shape.batch, shape.rows, shape.m, shape.n,         shape.groups};
  const bool is_widened = buffers.out.element_type() == ffi::DataType::F32;
  switch (buffers.a.element_type()) {
    case ffi::DataType::F32:
      return Run<float, float>(pool, op, offsets, buffers, max_threads);
    case ffi::DataType::BF16:
      return is_widened ? Run<BFloat16, float>(pool, op, offsets, buffers, max_threads)
                        : Run<BFloat16, BFloat16>(pool, op, offsets, buffers, max_threads);
    default:
      return is_widened ? Run<Float16, float>(pool, op, offsets, buffers, max_threads)
                        : Run<Float16, Float16>(pool, op, offsets, buffers, max_threads);
  }
}

ffi::Error VariableKGemmImpl(ffi::ThreadPool pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                             ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                             ffi::Result<ffi::AnyBuffer> out, int64_t max_threads) {
  return Guarded(kName, [&] {
    return CheckedVariableK(pool, {lhs, rhs, group_lens, group_offs, *out}, max_threads);
  });
}

}  // namespace
}  // namespace moeprof

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGroupedGemmVariableK, moeprof::VariableKGemmImpl,
    moeprof::BindVariableK(xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
#pragma GCC visibility pop
