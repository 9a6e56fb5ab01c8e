// Question: how do bfloat16 and float16 become float32 and back?
#pragma once

#include <cstdint>

namespace moeprof {

// Bit patterns, not arithmetic types: every product is computed in float32.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Exact. `source` and `target` do not overlap.
void ToFloat32(const BFloat16* source, float* target, int64_t count);
void ToFloat32(const Float16* source, float* target, int64_t count);

// Rounds to nearest, ties to even; overflow becomes infinity and NaN stays NaN (IEEE 754-2008).
void FromFloat32(const float* source, BFloat16* target, int64_t count);
void FromFloat32(const float* source, Float16* target, int64_t count);

}  // namespace moeprof
