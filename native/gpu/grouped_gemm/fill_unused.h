// Question: what does a product write where no group has rows, or where none can be computed?
//
// For device code alone.
#pragma once

#include <cstdint>

#include "common/nan_bits.h"
#include "gpu/runtime/device_code.h"

namespace moeprof::gpu {

// Writes zeros to the bytes [first_byte, end_byte) of an output, or where the plan is broken the
// NaN of common/nan_bits.h; by thread `thread` of `threads`. The output is aligned to
// `sizeof(Word)`.
template <typename Word>
__device__ __forceinline__ void FillUnused(void* out, int64_t first_byte, int64_t end_byte,
                                           bool broken, int64_t thread, int64_t threads) {
  Word value;
  auto* words = reinterpret_cast<uint32_t*>(&value);
  if constexpr (sizeof(Word) >= 4) {
    for (int i = 0; i < static_cast<int>(sizeof(Word) / 4); ++i)
      words[i] = broken ? kUselessBits : 0u;
  } else {
    value = broken ? static_cast<Word>(kUselessBits) : Word(0);
  }
  auto* data = static_cast<Word*>(out);
  const int64_t end = end_byte / static_cast<int64_t>(sizeof(Word));
  for (int64_t i = first_byte / static_cast<int64_t>(sizeof(Word)) + thread; i < end;
       i += threads) {
    data[i] = value;
  }
}

}  // namespace moeprof::gpu
