// Question: are the buffers of a grouped GEMM call sound, and which kernel do they go to?
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/caught.h"
#include "common/grouped_gemm_shapes.h"
#include "common/sides.h"
#include "cpu/common/convert.h"
#include "cpu/common/poison.h"
#include "cpu/grouped_gemm/launch.h"
#include "cpu/products/gemm_tile.h"
#include "cpu/products/group_offsets.h"
#include "cpu/products/poison_copies.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "moeprof_grouped_gemm";

ffi::Error Refuse(const std::string& complaint) {
  return ffi::Error::InvalidArgument(std::string(kName) + ": " + complaint);
}

template <typename T>
ffi::Error Run(ffi::ThreadPool& pool, const GroupedGemm<void>& shape, const GroupOffsets& offsets,
               const ProductBuffers& buffers, int64_t max_threads) {
  ffi::AnyBuffer out = buffers.out;
  GroupedGemm<T> op{static_cast<const T*>(buffers.a.untyped_data()),
                    static_cast<const T*>(buffers.b.untyped_data()),
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

ffi::Error CheckedGroupedGemm(ffi::ThreadPool pool, const ProductBuffers& buffers, bool trans_a,
                              bool trans_b, int64_t max_threads) {
  const auto read = ReadForward(buffers, trans_a, trans_b);
  if (const auto* complaint = std::get_if<Complaint>(&read)) return Refuse(*complaint);
  const auto& shape = std::get<ForwardShape>(read);
  if (auto complaint = CheckSides({shape.rows, shape.k, shape.n}, kLongestSide))
    return Refuse(*complaint);
  GroupOffsets offsets;
  if (auto fault = offsets.Read(buffers.lens, buffers.offs, shape.lengths, shape.rows)) {
    return Refuse(*fault);
  }
  const GroupedGemm<void> op{nullptr,       nullptr,      nullptr,    shape.a_batch,
                             shape.b_batch, shape.batch,  shape.rows, shape.k,
                             shape.n,       shape.groups, trans_a,    trans_b};
  switch (buffers.a.element_type()) {
    case ffi::DataType::F32:
      return Run<float>(pool, op, offsets, buffers, max_threads);
    case ffi::DataType::BF16:
      return Run<BFloat16>(pool, op, offsets, buffers, max_threads);
    default:
      return Run<Float16>(pool, op, offsets, buffers, max_threads);
  }
}

ffi::Error GroupedGemmImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b,
                           ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                           ffi::Result<ffi::AnyBuffer> out, bool trans_a, bool trans_b,
                           int64_t max_threads) {
  return Guarded(kName, [&] {
    return CheckedGroupedGemm(pool, {a, b, group_lens, group_offs, *out}, trans_a, trans_b,
                              max_threads);
  });
}

}  // namespace
}  // namespace moeprof

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGroupedGemm, moeprof::GroupedGemmImpl,
    moeprof::BindForward(xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
#pragma GCC visibility pop
