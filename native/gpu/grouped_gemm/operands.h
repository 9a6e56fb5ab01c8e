// Question: where do the operands of each element of a batch lie on the device?
#pragma once

#include <cstdint>

#include "common/grouped_gemm_shapes.h"
#include "gpu/grouped_gemm/group_lengths.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

// Where element `i` of the batch begins in an operand that has all elements, or one for all.
inline char* DataOf(const xla::ffi::AnyBuffer& operand, int64_t i) {
  const int64_t elements = operand.dimensions()[0];
  const auto bytes = static_cast<int64_t>(operand.size_bytes()) / elements;
  return static_cast<char*>(operand.untyped_data()) + ElementOf(elements, i) * bytes;
}

// The lengths and offsets of element `i`.
GroupLengths LengthsOf(const ProductBuffers& buffers, const LengthsShape& shape, int64_t i);

}  // namespace moeprof::gpu
