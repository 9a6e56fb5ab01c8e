// Question: what is launched for a grouped GEMM call on a GPU?
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

constexpr GpuOp kOp = GpuOp::kGroupedGemm;

ffi::Error Refuse(const std::string& complaint) {
  return ToError(kOp, {Fault::kInvalidArgument, complaint});
}

ffi::Error Run(gpuStream_t stream, ffi::ScratchAllocator& allocator, const ProductBuffers& buffers,
               bool trans_a, bool trans_b, int64_t max_threads) {
  if (trans_a) return Refuse("trans_a is not taken on a GPU; the caller transposes a");
  const auto read = ReadForward(buffers, trans_a, trans_b);
  if (const auto* complaint = std::get_if<Complaint>(&read)) return Refuse(*complaint);
  const auto& shape = std::get<ForwardShape>(read);
  if (auto complaint = CheckSides({shape.rows, shape.k, shape.n, shape.groups})) {
    return Refuse(*complaint);
  }
  const auto type = ElementTypeOf(buffers.a.element_type());
  if (!type) return Refuse("a must be float32, bfloat16 or float16");
  const BatchCall call{kOp, stream, allocator, shape.lengths, shape.batch, max_threads};
  return RunBatch(call, [&](int64_t i, const ProductLaunch& launch) {
    return LaunchGroupedGemm(
        stream,
        {*type, DataOf(buffers.a, i), DataOf(buffers.b, i), DataOf(buffers.out, i),
         LengthsOf(buffers, shape.lengths, i), shape.rows, shape.k, shape.n, trans_b},
        launch.scratch, launch.report, launch.choice);
  });
}

ffi::Error GroupedGemmImpl(gpuStream_t stream, ffi::ScratchAllocator allocator, ffi::AnyBuffer a,
                           ffi::AnyBuffer b, ffi::AnyBuffer group_lens, ffi::AnyBuffer group_offs,
                           ffi::Result<ffi::AnyBuffer> out, bool trans_a, bool trans_b,
                           int64_t max_threads) {
  return Guarded(NameOf(kOp), [&] {
    return Run(stream, allocator, {a, b, group_lens, group_offs, *out}, trans_a, trans_b,
               max_threads);
  });
}

}  // namespace
}  // namespace moeprof::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    MoeprofGpuGroupedGemm, moeprof::gpu::GroupedGemmImpl,
    moeprof::BindForward(xla::ffi::Ffi::Bind()
                             .Ctx<xla::ffi::PlatformStream<moeprof::gpu::gpuStream_t>>()
                             .Ctx<xla::ffi::ScratchAllocator>()));
#pragma GCC visibility pop
