#include "cpu/common/convert.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define MOEPROF_X86 1
#endif

namespace moeprof {
namespace {

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float Float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// bfloat16 is the upper half of a float32.
inline __attribute__((always_inline)) void Widen(const BFloat16* source, float* target,
                                                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    target[i] = Float(static_cast<uint32_t>(source[i].bits) << 16);
  }
}

// Adding 0x7FFF, plus 1 where the kept part is odd, carries into it exactly when rounding up.
inline __attribute__((always_inline)) void Narrow(const float* source, BFloat16* target,
                                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = Bits(source[i]);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    target[i].bits = static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
  }
}

float WidenOne(Float16 half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t magnitude = half.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return Float(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  // Arithmetic on a float32 subnormal would not do: XLA's threads flush those to zero.
  if (magnitude < 0x400u) {
    return Float(sign | Bits(static_cast<float>(magnitude) * Float(0x33800000u)));  // 2**-24
  }
  return Float(sign | ((magnitude << 13) + (112u << 23)));
}

Float16 NarrowOne(float value) {
  const uint32_t sign = (Bits(value) >> 16) & 0x8000u;
  const uint32_t magnitude = Bits(value) & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2**-14: subnormal; adding 0.5 rounds at 2**-24
    const uint32_t rounded = Bits(Float(magnitude) + 0.5f) - Bits(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

#if MOEPROF_X86
bool HasAvx2AndF16c() {
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return supported;
}

__attribute__((target("avx2"))) void WidenAvx2(const BFloat16* source, float* target,
                                               int64_t count) {
  Widen(source, target, count);
}

__attribute__((target("avx2"))) void NarrowAvx2(const float* source, BFloat16* target,
                                                int64_t count) {
  Narrow(source, target, count);
}

// Both return how many elements they converted; the rest is fewer than one vector.
__attribute__((target("avx2,f16c"))) int64_t WidenF16c(const Float16* source, float* target,
                                                       int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(halves));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) int64_t NarrowF16c(const float* source, Float16* target,
                                                        int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), halves);
  }
  return i;
}
#else
bool HasAvx2AndF16c() { return false; }
void WidenAvx2(const BFloat16* source, float* target, int64_t count) {
  Widen(source, target, count);
}
void NarrowAvx2(const float* source, BFloat16* target, int64_t count) {
  Narrow(source, target, count);
}
int64_t WidenF16c(const Float16*, float*, int64_t) { return 0; }
int64_t NarrowF16c(const float*, Float16*, int64_t) { return 0; }
#endif

}  // namespace

void ToFloat32(const BFloat16* source, float* target, int64_t count) {
  HasAvx2AndF16c() ? WidenAvx2(source, target, count) : Widen(source, target, count);
}

void ToFloat32(const Float16* source, float* target, int64_t count) {
  const int64_t done = HasAvx2AndF16c() ? WidenF16c(source, target, count) : 0;
  for (int64_t i = done; i < count; ++i) target[i] = WidenOne(source[i]);
}

void FromFloat32(const float* source, BFloat16* target, int64_t count) {
  HasAvx2AndF16c() ? NarrowAvx2(source, target, count) : Narrow(source, target, count);
}

void FromFloat32(const float* source, Float16* target, int64_t count) {
  const int64_t done = HasAvx2AndF16c() ? NarrowF16c(source, target, count) : 0;
  for (int64_t i = done; i < count; ++i) target[i] = NarrowOne(source[i]);
}

}  // namespace moeprof
