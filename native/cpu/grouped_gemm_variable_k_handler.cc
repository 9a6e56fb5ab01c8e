// Question: are the buffers of a variable-K grouped GEMM call sound, and which kernel runs?
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/caught.h"
#include "cpu/convert.h"
#include "cpu/group_offsets.h"
#include "cpu/grouped_gemm_poison.h"
#include "cpu/grouped_gemm_variable_k_launch.h"
#include "cpu/poison.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "moeprof_grouped_gemm_variable_k";

ffi::Error Refuse(const std::string& complaint) {
  return ffi::Error::InvalidArgument(std::string(kName) + ": " + complaint);
}

std::string CheckShapes(const VariableKGemm<void>& op, int64_t rhs_rows,
                        ffi::AnyBuffer::Dimensions out) {
  if (rhs_rows != op.rows) {
    return "lhs has " + std::to_string(op.rows) + " rows, but rhs has " + std::to_string(rhs_rows);
  }
  if ((op.lhs_batch != 1 && op.lhs_batch != op.batch) ||
      (op.rhs_batch != 1 && op.rhs_batch != op.batch)) {
    return "lhs has " + std::to_string(op.lhs_batch) + " and rhs " + std::to_string(op.rhs_batch) +
           " batch elements, expected " + std::to_string(op.batch) + " or 1";
  }
  if (out[2] != op.m || out[3] != op.n) {
    return "the output is " + std::to_string(out[2]) + " x " + std::to_string(out[3]) +
           ", expected " + std::to_string(op.m) + " x " + std::to_string(op.n);
  }
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  for (int64_t size : {op.rows, op.m, op.n}) {
    if (size > kLimit) {
      return "a side of " + std::to_string(size) + " is past the limit of " +
             std::to_string(kLimit) + " of one product";
    }
  }
  return "";
}

template <typename T, typename Out>
ffi::Error Run(ffi::ThreadPool& pool, const VariableKGemm<void>& shape, const GroupOffsets& offsets,
               ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::AnyBuffer& out, int64_t max_threads) {
  VariableKGemm<T, Out> op{static_cast<const T*>(lhs.untyped_data()),
                           static_cast<const T*>(rhs.untyped_data()),
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

ffi::Error CheckedVariableK(ffi::ThreadPool pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                            ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                            ffi::Result<ffi::AnyBuffer> out, int64_t max_threads) {
  const auto lhs_dims = lhs.dimensions();
  const auto rhs_dims = rhs.dimensions();
  const auto out_dims = out->dimensions();
  if (lhs_dims.size() != 3 || rhs_dims.size() != 3 || out_dims.size() != 4) {
    return Refuse("expected lhs, rhs and the output of rank 3, 3 and 4");
  }
  VariableKGemm<void> shape{};
  shape.lhs_batch = lhs_dims[0];
  shape.rhs_batch = rhs_dims[0];
  shape.batch = out_dims[0];
  shape.rows = lhs_dims[1];
  shape.m = lhs_dims[2];
  shape.n = rhs_dims[2];
  shape.groups = out_dims[1];
  const std::string complaint = CheckShapes(shape, rhs_dims[1], out_dims);
  if (!complaint.empty()) return Refuse(complaint);
  const ffi::DataType type = lhs.element_type(), out_type = out->element_type();
  if (type != rhs.element_type()) return Refuse("lhs and rhs differ in dtype");
  const bool is_widened = out_type == ffi::DataType::F32;
  if (type != out_type && !is_widened) {
    return Refuse("the output must be float32 or of the dtype of lhs and rhs");
  }
  GroupOffsets offsets;
  if (auto fault = offsets.Read(group_lens, group_offs, shape.rows, shape.batch)) {
    return Refuse(*fault);
  }
  if (offsets.groups() != shape.groups) {
    return Refuse("group_lens has " + std::to_string(offsets.groups()) +
                  " groups, but the output has " + std::to_string(shape.groups));
  }
  switch (type) {
    case ffi::DataType::F32:
      return Run<float, float>(pool, shape, offsets, lhs, rhs, *out, max_threads);
    case ffi::DataType::BF16:
      return is_widened
                 ? Run<BFloat16, float>(pool, shape, offsets, lhs, rhs, *out, max_threads)
                 : Run<BFloat16, BFloat16>(pool, shape, offsets, lhs, rhs, *out, max_threads);
    case ffi::DataType::F16:
      return is_widened ? Run<Float16, float>(pool, shape, offsets, lhs, rhs, *out, max_threads)
                        : Run<Float16, Float16>(pool, shape, offsets, lhs, rhs, *out, max_threads);
    default:
      return Refuse("lhs must be float32, bfloat16 or float16");
  }
}

ffi::Error VariableKGemmImpl(ffi::ThreadPool pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                             ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                             ffi::Result<ffi::AnyBuffer> out, int64_t max_threads) {
  return Guarded(kName, [&] {
    return CheckedVariableK(pool, lhs, rhs, group_lens, group_offs, out, max_threads);
  });
}

}  // namespace
}  // namespace moeprof

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGroupedGemmVariableK, moeprof::VariableKGemmImpl,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // lhs [Bl, rows, m]
                                  .Arg<xla::ffi::AnyBuffer>()  // rhs [Br, rows, n]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_lens [Bl, G]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_offs [Bo, G + 1] or [1, 0]
                                  .Ret<xla::ffi::AnyBuffer>()  // out [B, G, m, n]
                                  .Attr<int64_t>("max_threads"));
#pragma GCC visibility pop
