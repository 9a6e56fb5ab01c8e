// Question: how do kernels widen and narrow floats of 16 bits?
//
// For device code alone. Narrowing rounds to nearest, ties to even; every NaN becomes the one with
// all bits below the sign set.
#pragma once

#include "gpu/runtime/bfloat16_bits.h"
#include "gpu/runtime/gpu_runtime.h"

#if defined(MOEPROF_HIP)
#include <hip/hip_fp16.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace moeprof::gpu {

using float16_t = __half;
#if defined(MOEPROF_HIP)
struct bfloat16_t {
  uint16_t bits;  // the upper half of a float32
};
#else
using bfloat16_t = __nv_bfloat16;
#endif

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(float16_t value) { return __half2float(value); }

// `bits` are two values, the one at the lower address in the lower half; `T` says of which type.
template <typename T>
__device__ __forceinline__ float2 WidenPair(uint32_t bits);
template <>
__device__ __forceinline__ float2 WidenPair<bfloat16_t>(uint32_t bits) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u));
}
template <>
__device__ __forceinline__ float2 WidenPair<float16_t>(uint32_t bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

template <typename T>
__device__ __forceinline__ T FromFloat(float value);
template <>
__device__ __forceinline__ float FromFloat<float>(float value) {
  return value;
}

template <typename T>
__device__ __forceinline__ uint32_t NarrowPair(float low, float high);

#if defined(MOEPROF_HIP)

__device__ __forceinline__ float ToFloat(bfloat16_t value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

template <>
__device__ __forceinline__ bfloat16_t FromFloat<bfloat16_t>(float value) {
  return {BFloat16Bits(__float_as_uint(value))};
}
template <>
__device__ __forceinline__ float16_t FromFloat<float16_t>(float value) {
  const __half half = __float2half_rn(value);
  return value == value ? half : __ushort_as_half(0x7FFF);
}

template <>
__device__ __forceinline__ uint32_t NarrowPair<bfloat16_t>(float low, float high) {
  return FromFloat<bfloat16_t>(low).bits | static_cast<uint32_t>(FromFloat<bfloat16_t>(high).bits)
                                               << 16;
}
template <>
__device__ __forceinline__ uint32_t NarrowPair<float16_t>(float low, float high) {
  return __half_as_ushort(FromFloat<float16_t>(low)) |
         static_cast<uint32_t>(__half_as_ushort(FromFloat<float16_t>(high))) << 16;
}

#else

__device__ __forceinline__ float ToFloat(bfloat16_t value) { return __bfloat162float(value); }

template <>
__device__ __forceinline__ bfloat16_t FromFloat<bfloat16_t>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ float16_t FromFloat<float16_t>(float value) {
  return __float2half_rn(value);
}

template <>
__device__ __forceinline__ uint32_t NarrowPair<bfloat16_t>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t NarrowPair<float16_t>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

#endif

}  // namespace moeprof::gpu
