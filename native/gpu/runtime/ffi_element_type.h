// Question: which of our kernels' types is a type of XLA's?
#pragma once

#include <optional>

#include "gpu/runtime/element_type.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

// Nothing where the kernels do not take it.
inline std::optional<ElementType> ElementTypeOf(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::F32:
      return ElementType::kFloat32;
    case xla::ffi::DataType::BF16:
      return ElementType::kBFloat16;
    case xla::ffi::DataType::F16:
      return ElementType::kFloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace moeprof::gpu
