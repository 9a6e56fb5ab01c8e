// Question: what is launched for a variable-K grouped GEMM call on a GPU?
#include <cstdint>
#include <string>
#include <variant>

#include "common/caught.h"
#include "common/grouped_gemm_shapes.h"
#include "gpu/grouped_gemm/batch.h"
#include "gpu/grouped_gemm/launch.h"
#include "gpu/grouped_gemm/operands.h"
#include "gpu/grouped_gemm/sides.h"
#include "gpu/runtime/ffi_element_type.h"
#include "gpu/runtime/gpu_runtime.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

constexpr GpuOp kOp = GpuOp::kGroupedGemmVariableK;

ffi::Error Refuse(const std::string& complaint) {
  return ToError(kOp, {Fault::kInvalidArgument, complaint});
}

ffi::Error Run(gpuStream_t stream, ffi::ScratchAllocator& allocator, const ProductBuffers& buffers,
               int64_t max_threads) {
  const auto read = ReadVariableK(buffers);
  if (const auto* complaint = std::get_if<Complaint>(&read)) return Refuse(*complaint);
  const auto& shape = std::get<VariableKShape>(read);
  if (auto complaint = CheckSides({shape.rows, shape.m, shape.n, shape.groups})) {
    return Refuse(*complaint);
  }
  const auto type = ElementTypeOf(buffers.a.element_type());
  if (!type) return Refuse("lhs must be float32, bfloat16 or float16");
  // 16-bit operands may leave their sums in float32.
  const bool float_out = buffers.out.element_type() == ffi::DataType::F32;
  const BatchCall call{kOp, stream, allocator, shape.lengths, shape.batch, max_threads};
  return RunBatch(call, [&](int64_t i, const ProductLaunch& launch) {
    return LaunchVariableKGemm(
        stream,
        {*type, DataOf(buffers.a, i), DataOf(buffers.b, i), DataOf(buffers.out, i),
         LengthsOf(buffers, shape.lengths, i), shape.rows, shape.m, shape.n, float_out},
        launch.scratch, launch.report, launch.choice);
  });
}

ffi::Error VariableKGemmImpl(gpuStream_t stream, ffi::ScratchAllocator allocator,
                             ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::AnyBuffer group_lens,
                             ffi::AnyBuffer group_offs, ffi::Result<ffi::AnyBuffer> out,
                             int64_t max_threads) {
  return Guarded(NameOf(kOp), [&] {
    return Run(stream, allocator, {lhs, rhs, group_lens, group_offs, *out}, max_threads);
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGpuGroupedGemmVariableK, moeprof::gpu::VariableKGemmImpl,
    moeprof::BindVariableK(xla::ffi::Ffi::Bind()
                               .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                               .Ctx<xla::ffi::ScratchAllocator>()));
#pragma GCC visibility pop
