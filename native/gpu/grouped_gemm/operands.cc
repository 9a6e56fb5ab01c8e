#include "gpu/grouped_gemm/operands.h"

namespace moeprof::gpu {

GroupLengths LengthsOf(const ProductBuffers& buffers, const LengthsShape& shape, int64_t i) {
  constexpr auto kInt64 = xla::ffi::DataType::S64;
  return {DataOf(buffers.lens, i), shape.has_offs ? DataOf(buffers.offs, i) : nullptr,
          buffers.lens.element_type() == kInt64, buffers.offs.element_type() == kInt64,
          static_cast<int32_t>(shape.groups)};
}

}  // namespace moeprof::gpu
