// Question: which NaN says that a result is not one?
#pragma once

#include <cstdint>

namespace moeprof {

// In every 16 bits of rows that no rank sent and no group has, in poison mode: a NaN as bfloat16,
// float16 and float32.
constexpr uint16_t kUnusedRowBits = 0xFFC1;

// In results that could not be computed from unsound operands: a NaN in every float type. Unlike
// the NaN that arithmetic makes, all ones.
constexpr uint32_t kUselessBits = 0xFFFFFFFF;

}  // namespace moeprof
