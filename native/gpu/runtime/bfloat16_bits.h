// Question: which 16 bits is a float32 as bfloat16?
//
// For GPUs whose headers do not say; CUDA's do, and its results are the same.
#pragma once

#include <cstdint>

#include "gpu/runtime/host_and_device.h"

namespace moeprof::gpu {

// Of the float32 with these bits: rounds to nearest, ties to even; any NaN becomes 0x7FFF. Adding
// half of the last place that stays, less one where that place is even, carries upwards exactly
// where rounding does, past the largest finite value to infinity too.
MOEPROF_BOTH uint16_t BFloat16Bits(uint32_t float_bits) {
  if ((float_bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<uint16_t>((float_bits + 0x7FFFu + (float_bits >> 16 & 1u)) >> 16);
}

}  // namespace moeprof::gpu
