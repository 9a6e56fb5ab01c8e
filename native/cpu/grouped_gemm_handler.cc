// Question: are the buffers of a grouped GEMM call sound, and which kernel do they go to?
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/caught.h"
#include "cpu/convert.h"
#include "cpu/group_offsets.h"
#include "cpu/grouped_gemm_launch.h"
#include "cpu/grouped_gemm_poison.h"
#include "cpu/poison.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "moeprof_grouped_gemm";

ffi::Error Refuse(const std::string& complaint) {
  return ffi::Error::InvalidArgument(std::string(kName) + ": " + complaint);
}

std::string CheckShapes(const GroupedGemm<void>& op, ffi::AnyBuffer::Dimensions b,
                        ffi::AnyBuffer::Dimensions out) {
  const int64_t b_k = b[op.trans_b ? 3 : 2];
  if (b_k != op.k) {
    return "a is " + std::to_string(op.k) + " wide, but b expects " + std::to_string(b_k);
  }
  if ((op.a_batch != 1 && op.a_batch != op.batch) || (op.b_batch != 1 && op.b_batch != op.batch)) {
    return "a has " + std::to_string(op.a_batch) + " and b " + std::to_string(op.b_batch) +
           " batch elements, expected " + std::to_string(op.batch) + " or 1";
  }
  if (out[1] != op.rows || out[2] != op.n) {
    return "the output is " + std::to_string(out[1]) + " x " + std::to_string(out[2]) +
           ", expected " + std::to_string(op.rows) + " x " + std::to_string(op.n);
  }
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  for (int64_t size : {op.rows, op.k, op.n}) {
    if (size > kLimit) {
      return "a side of " + std::to_string(size) + " is past the limit of " +
             std::to_string(kLimit) + " of one product";
    }
  }
  return "";
}

template <typename T>
ffi::Error Run(ffi::ThreadPool& pool, const GroupedGemm<void>& shape, const GroupOffsets& offsets,
               ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer& out, int64_t max_threads) {
  GroupedGemm<T> op{static_cast<const T*>(a.untyped_data()),
                    static_cast<const T*>(b.untyped_data()),
                    static_cast<T*>(out.untyped_data()),
                    shape.a_batch,
                    shape.b_batch,
                    shape.batch,
                    shape.rows,
                    shape.k,
                    shape.n,
                    shape.groups,
                    shape.trans_a,
                    shape.trans_b};
  const bool poison = PoisonEnabled();
  std::vector<T> poisoned_a;
  if (poison) {
    poisoned_a =
        CopyWithPoisonedTail<T>({op.a, op.a_batch, op.rows, op.k, op.trans_a}, offsets, op.batch);
    op.a = poisoned_a.data();
    PoisonOutput(op.out, out.size_bytes());
  }
  if (!LaunchGroupedGemm(pool, op, offsets, max_threads)) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::string(kName) + ": out of memory");
  }
  return poison ? CheckFullyWritten(kName, out) : ffi::Error::Success();
}

ffi::Error CheckedGroupedGemm(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b,
                              ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                              ffi::Result<ffi::AnyBuffer> out, bool trans_a, bool trans_b,
                              int64_t max_threads) {
  const auto a_dims = a.dimensions();
  const auto b_dims = b.dimensions();
  const auto out_dims = out->dimensions();
  if (a_dims.size() != 3 || b_dims.size() != 4 || out_dims.size() != 3) {
    return Refuse("expected a, b and the output of rank 3, 4 and 3");
  }
  GroupedGemm<void> shape{};
  shape.a_batch = a_dims[0];
  shape.b_batch = b_dims[0];
  shape.batch = out_dims[0];
  shape.rows = a_dims[trans_a ? 2 : 1];
  shape.k = a_dims[trans_a ? 1 : 2];
  shape.n = b_dims[trans_b ? 2 : 3];
  shape.groups = b_dims[1];
  shape.trans_a = trans_a;
  shape.trans_b = trans_b;
  const std::string complaint = CheckShapes(shape, b_dims, out_dims);
  if (!complaint.empty()) return Refuse(complaint);
  if (a.element_type() != b.element_type() || a.element_type() != out->element_type()) {
    return Refuse("a, b and the output differ in dtype");
  }
  GroupOffsets offsets;
  if (auto fault = offsets.Read(group_lens, group_offs, shape.rows, shape.batch)) {
    return Refuse(*fault);
  }
  if (offsets.groups() != shape.groups) {
    return Refuse("group_lens has " + std::to_string(offsets.groups()) + " groups, but b has " +
                  std::to_string(shape.groups));
  }
  switch (a.element_type()) {
    case ffi::DataType::F32:
      return Run<float>(pool, shape, offsets, a, b, *out, max_threads);
    case ffi::DataType::BF16:
      return Run<BFloat16>(pool, shape, offsets, a, b, *out, max_threads);
    case ffi::DataType::F16:
      return Run<Float16>(pool, shape, offsets, a, b, *out, max_threads);
    default:
      return Refuse("a must be float32, bfloat16 or float16");
  }
}

ffi::Error GroupedGemmImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b,
                           ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                           ffi::Result<ffi::AnyBuffer> out, bool trans_a, bool trans_b,
                           int64_t max_threads) {
  return Guarded(kName, [&] {
    return CheckedGroupedGemm(pool, a, b, group_lens, group_offs, out, trans_a, trans_b,
                              max_threads);
  });
}

}  // namespace
}  // namespace moeprof

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGroupedGemm, moeprof::GroupedGemmImpl,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // a [Ba, M, k] or [Ba, k, M]
                                  .Arg<xla::ffi::AnyBuffer>()  // b [Bb, G, k, n] or [Bb, G, n, k]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_lens [Bl, G]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_offs [Bo, G + 1] or [1, 0]
                                  .Ret<xla::ffi::AnyBuffer>()  // out [B, M, n]
                                  .Attr<bool>("trans_a")
                                  .Attr<bool>("trans_b")
                                  .Attr<int64_t>("max_threads"));
#pragma GCC visibility pop
