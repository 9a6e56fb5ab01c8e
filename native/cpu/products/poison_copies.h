// Question: does any result of a grouped GEMM depend on memory that holds nothing?
//
// In poison mode the handlers compute from copies whose unused rows are one NaN, into an output
// that was filled with another, and then look for the latter: a value never written. A row that
// leaks shows as a NaN in the result. Inputs of XLA
// are read-only, hence the copies; the mode is for tests and hunts, not for timing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/common/poison.h"
#include "cpu/products/group_offsets.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

// A ragged operand [elements, rows, width], or [elements, width, rows] where `transposed`.
template <typename T>
struct Ragged {
  const T* data;
  int64_t elements, rows, width;
  bool transposed;
};

// A copy of `operand` in which every row past the groups' sum is poison. An operand that several
// batch elements share keeps the rows of the longest of them.
template <typename T>
std::vector<T> CopyWithPoisonedTail(const Ragged<T>& operand, const GroupOffsets& offsets,
                                    int64_t batch) {
  const int64_t size = operand.rows * operand.width;
  std::vector<T> copy(operand.data, operand.data + operand.elements * size);
  for (int64_t e = 0; e < operand.elements; ++e) {
    int64_t used = offsets.total(e);
    for (int64_t b = 0; operand.elements == 1 && b < batch; ++b) {
      used = std::max(used, offsets.total(b));
    }
    const int64_t unused = operand.rows - used;
    T* element = copy.data() + e * size;
    if (!operand.transposed) {
      PoisonRows(element + used * operand.width, unused * operand.width * sizeof(T));
      continue;
    }
    for (int64_t i = 0; i < operand.width; ++i) {
      PoisonRows(element + i * operand.rows + used, unused * sizeof(T));
    }
  }
  return copy;
}

// An error where an element of `out` is still as PoisonOutput left it.
inline xla::ffi::Error CheckFullyWritten(const char* op, xla::ffi::AnyBuffer& out) {
  const size_t element_bytes = xla::ffi::ByteWidth(out.element_type());
  const int64_t index = FindUnwritten(out.untyped_data(), out.element_count(), element_bytes);
  if (index < 0) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(std::string(op) + ": poison mode found element " +
                                   std::to_string(index) + " of the output never written");
}

}  // namespace moeprof
