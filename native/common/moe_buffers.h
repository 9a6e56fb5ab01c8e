// Question: what do the buffers of dispatch and combine look like?
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace moeprof {

// The binding refuses other dtypes and numbers of dimensions.
using Int32Vector = xla::ffi::BufferR1<xla::ffi::S32>;
using Int32Matrix = xla::ffi::BufferR2<xla::ffi::S32>;
using FloatMatrix = xla::ffi::BufferR2<xla::ffi::F32>;
using BoolMatrix = xla::ffi::BufferR2<xla::ffi::PRED>;
template <typename Buffer>
using Out = xla::ffi::Result<Buffer>;

template <typename Buffer>
bool HasShape(const Buffer& buffer, int64_t rows, int64_t columns) {
  const auto dims = buffer.dimensions();
  return dims.size() == 2 && dims[0] == rows && dims[1] == columns;
}

inline bool HasLength(const Int32Vector& buffer, int64_t length) {
  return buffer.dimensions()[0] == length;
}

// Bytes of one row of a matrix.
inline int64_t RowBytes(const xla::ffi::AnyBuffer& rows) {
  return rows.dimensions()[1] * static_cast<int64_t>(xla::ffi::ByteWidth(rows.element_type()));
}

}  // namespace moeprof
