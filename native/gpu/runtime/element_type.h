// Question: of which types are the operands of the GPU kernels?
#pragma once

#include <cstdint>

namespace moeprof::gpu {

enum class ElementType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

constexpr int64_t BytesOf(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

}  // namespace moeprof::gpu
