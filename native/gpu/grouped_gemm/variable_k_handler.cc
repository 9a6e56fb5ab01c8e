// Question: are the buffers of a variable-K grouped GEMM call on a GPU sound, and what is launched?
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

constexpr GpuOp kOp = GpuOp::kGroupedGemmVariableK;

ffi::Error Refuse(const std::string& complaint) {
  return ToError(kOp, {Fault::kInvalidArgument, complaint});
}

// lhs [Bl, rows, m], rhs [Br, rows, n], out [B, G, m, n].
struct Shape {
  int64_t lhs_batch, rhs_batch, batch, rows, m, n, groups;
};

std::string CheckShapes(const Shape& shape, int64_t rhs_rows, ffi::AnyBuffer::Dimensions out) {
  if (rhs_rows != shape.rows) {
    return "lhs has " + std::to_string(shape.rows) + " rows, but rhs has " +
           std::to_string(rhs_rows);
  }
  if ((shape.lhs_batch != 1 && shape.lhs_batch != shape.batch) ||
      (shape.rhs_batch != 1 && shape.rhs_batch != shape.batch)) {
    return "lhs has " + std::to_string(shape.lhs_batch) + " and rhs " +
           std::to_string(shape.rhs_batch) + " batch elements, expected " +
           std::to_string(shape.batch) + " or 1";
  }
  if (out[2] != shape.m || out[3] != shape.n) {
    return "the output is " + std::to_string(out[2]) + " x " + std::to_string(out[3]) +
           ", expected " + std::to_string(shape.m) + " x " + std::to_string(shape.n);
  }
  return CheckSides({shape.rows, shape.m, shape.n, shape.groups}).value_or("");
}

ffi::Error CheckedVariableK(gpuStream_t stream, ffi::ScratchAllocator& allocator,
                            ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::AnyBuffer group_lens,
                            ffi::AnyBuffer group_offs, ffi::Result<ffi::AnyBuffer> out,
                            int64_t max_threads) {
  const auto lhs_dims = lhs.dimensions();
  const auto rhs_dims = rhs.dimensions();
  const auto out_dims = out->dimensions();
  if (lhs_dims.size() != 3 || rhs_dims.size() != 3 || out_dims.size() != 4) {
    return Refuse("expected lhs, rhs and the output of rank 3, 3 and 4");
  }
  const Shape shape{lhs_dims[0], rhs_dims[0], out_dims[0], lhs_dims[1],
                    lhs_dims[2], rhs_dims[2], out_dims[1]};
  const std::string complaint = CheckShapes(shape, rhs_dims[1], out_dims);
  if (!complaint.empty()) return Refuse(complaint);
  // 16-bit operands may leave their sums in float32.
  const bool float_out = out->element_type() == ffi::DataType::F32;
  if (lhs.element_type() != rhs.element_type() ||
      (!float_out && lhs.element_type() != out->element_type())) {
    return Refuse("lhs, rhs and the output differ in dtype");
  }
  const auto type = ElementTypeOf(lhs.element_type());
  if (!type) return Refuse("lhs must be float32, bfloat16 or float16");
  LengthsOperand lengths;
  if (auto fault = lengths.Take(group_lens, group_offs, shape.batch)) return Refuse(*fault);
  if (lengths.groups() != shape.groups) {
    return Refuse("group_lens has " + std::to_string(lengths.groups()) +
                  " groups, but the output has " + std::to_string(shape.groups));
  }

  const int64_t bytes = BytesOf(*type), out_bytes = float_out ? 4 : bytes;
  const auto* lhs_data = static_cast<const char*>(lhs.untyped_data());
  const auto* rhs_data = static_cast<const char*>(rhs.untyped_data());
  auto* out_data = static_cast<char*>(out->untyped_data());
  const BatchCall call{kOp, stream, allocator, shape.batch, shape.groups, max_threads};
  return RunBatch(
      call, lengths,
      [&](int64_t i, void* scratch, const LengthsReport& report, const GemmChoice& choice) {
        const int64_t lhs_element = shape.lhs_batch == 1 ? 0 : i;
        const int64_t rhs_element = shape.rhs_batch == 1 ? 0 : i;
        const GpuVariableKGemm op{*type,
                                  lhs_data + lhs_element * shape.rows * shape.m * bytes,
                                  rhs_data + rhs_element * shape.rows * shape.n * bytes,
                                  out_data + i * shape.groups * shape.m * shape.n * out_bytes,
                                  lengths.of(i),
                                  shape.rows,
                                  shape.m,
                                  shape.n,
                                  float_out};
        return LaunchVariableKGemm(stream, op, scratch, report, choice);
      });
}

ffi::Error VariableKGemmImpl(gpuStream_t stream, ffi::ScratchAllocator allocator,
                             ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::AnyBuffer group_lens,
                             ffi::AnyBuffer group_offs, ffi::Result<ffi::AnyBuffer> out,
                             int64_t max_threads) {
  return Guarded(NameOf(kOp), [&] {
    return CheckedVariableK(stream, allocator, lhs, rhs, group_lens, group_offs, out, max_threads);
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(MoeprofGpuGroupedGemmVariableK, moeprof::gpu::VariableKGemmImpl,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                                  .Ctx<xla::ffi::ScratchAllocator>()
                                  .Arg<xla::ffi::AnyBuffer>()  // lhs [Bl, rows, m]
                                  .Arg<xla::ffi::AnyBuffer>()  // rhs [Br, rows, n]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_lens [Bl, G]
                                  .Arg<xla::ffi::AnyBuffer>()  // group_offs [Bo, G + 1] or [1, 0]
                                  .Ret<xla::ffi::AnyBuffer>()  // out [B, G, m, n]
                                  .Attr<int64_t>("max_threads"));
#pragma GCC visibility pop
