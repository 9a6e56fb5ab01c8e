// Question: are the buffers of a grouped GEMM call on a GPU sound, and what is launched for it?
#include <cstdint>
#include <string>

#include "common/caught.h"
#include "gpu/grouped_gemm/batch.h"
#include "gpu/grouped_gemm/launch.h"
#include "gpu/grouped_gemm/operands.h"
#include "gpu/grouped_gemm/sides.h"
#include "gpu/runtime/gpu_runtime.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

constexpr GpuOp kOp = GpuOp::kGroupedGemm;

ffi::Error Refuse(const std::string& complaint) {
  return ToError(kOp, {Fault::kInvalidArgument, complaint});
}

// a [Ba, rows, k], b [Bb, G, k, n] or [Bb, G, n, k], out [B, rows, n].
struct Shape {
  int64_t a_batch, b_batch, batch, rows, k, n, groups;
};

std::string CheckShapes(const Shape& shape, int64_t b_k, ffi::AnyBuffer::Dimensions out) {
  if (b_k != shape.k) {
    return "a is " + std::to_string(shape.k) + " wide, but b expects " + std::to_string(b_k);
  }
  if ((shape.a_batch != 1 && shape.a_batch != shape.batch) ||
      (shape.b_batch != 1 && shape.b_batch != shape.batch)) {
    return "a has " + std::to_string(shape.a_batch) + " and b " + std::to_string(shape.b_batch) +
           " batch elements, expected " + std::to_string(shape.batch) + " or 1";
  }
  if (out[1] != shape.rows || out[2] != shape.n) {
    return "the output is " + std::to_string(out[1]) + " x " + std::to_string(out[2]) +
           ", expected " + std::to_string(shape.rows) + " x " + std::to_string(shape.n);
  }
  return CheckSides({shape.rows, shape.k, shape.n, shape.groups}).value_or("");
}

ffi::Error CheckedGroupedGemm(gpuStream_t stream, ffi::ScratchAllocator& allocator,
                              ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_lens,
                              ffi::AnyBuffer group_offs, ffi::Result<ffi::AnyBuffer> out,
                              bool trans_a, bool trans_b, int64_t max_threads) {
  if (trans_a) return Refuse("trans_a is not taken on a GPU; the caller transposes a");
  const auto a_dims = a.dimensions();
  const auto b_dims = b.dimensions();
  const auto out_dims = out->dimensions();
  if (a_dims.size() != 3 || b_dims.size() != 4 || out_dims.size() != 3) {
    return Refuse("expected a, b and the output of rank 3, 4 and 3");
  }
  const Shape shape{
      a_dims[0], b_dims[0], out_dims[0], a_dims[1], a_dims[2], b_dims[trans_b ? 2 : 3], b_dims[1]};
  const std::string complaint = CheckShapes(shape, b_dims[trans_b ? 3 : 2], out_dims);
  if (!complaint.empty()) return Refuse(complaint);
  if (a.element_type() != b.element_type() || a.element_type() != out->element_type()) {
    return Refuse("a, b and the output differ in dtype");
  }
  const auto type = ElementTypeOf(a.element_type());
  if (!type) return Refuse("a must be float32, bfloat16 or float16");
  LengthsOperand lengths;
  if (auto fault = lengths.Take(group_lens, group_offs, shape.batch)) return Refuse(*fault);
  if (lengths.groups() != shape.groups) {
    return Refuse("group_lens has " + std::to_string(lengths.groups()) + " groups, but b has " +
                  std::to_string(shape.groups));
  }

  const int64_t bytes = BytesOf(*type);
  const auto* a_data = static_cast<const char*>(a.untyped_data());
  const auto* b_data = static_cast<const char*>(b.untyped_data());
  auto* out_data = static_cast<char*>(out->untyped_data());
  const BatchCall call{kOp, stream, allocator, shape.batch, shape.groups, max_threads};
  return RunBatch(
      call, lengths,
      [&](int64_t i, void* scratch, const LengthsReport& report, const GemmChoice& choice) {
        const int64_t a_element = shape.a_batch == 1 ? 0 : i,
                      b_element = shape.b_batch == 1 ? 0 : i;
        const GpuGroupedGemm op{*type,
                                a_data + a_element * shape.rows * shape.k * bytes,
                                b_data + b_element * shape.groups * shape.k * shape.n * bytes,
                                out_data + i * shape.rows * shape.n * bytes,
                                lengths.of(i),
                                shape.rows,
                                shape.k,
                                shape.n,
                                trans_b};
        return LaunchGroupedGemm(stream, op, scratch, report, choice);
      });
}

ffi::Error GroupedGemmImpl(gpuStream_t stream, ffi::ScratchAllocator allocator, ffi::AnyBuffer a,
                           ffi::AnyBuffer b, ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                           ffi::Result<ffi::AnyBuffer> out, bool trans_a, bool trans_b,
                           int64_t max_threads) {
  return Guarded(NameOf(kOp), [&] {
    return CheckedGroupedGemm(stream, allocator, a, b, group_lens, group_offs, out, trans_a,
                              trans_b, max_threads);
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGpuGroupedGemm, moeprof::gpu::GroupedGemmImpl,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                                  .Ctx<xla::ffi::ScratchAllocator>()
                                  .Arg<xla::ffi::AnyBuffer>()  // a [Ba, M, k]
                                  .Arg<xla::ffi::AnyBuffer>()  // b [Bb, G, k, n] or [Bb, G, n, k]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_lens [Bl, G]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_offs [Bo, G + 1] or [1, 0]
                                  .Ret<xla::ffi::AnyBuffer>()  // out [B, M, n]
                                  .Attr<bool>("trans_a")
                                  .Attr<bool>("trans_b")
                                  .Attr<int64_t>("max_threads"));
#pragma GCC visibility pop
