// Question: is poison mode on, and what does poisoned memory look like?
//
// Poison is all bits set: a NaN in float32, bfloat16 and float16, and -1 in every signed integer.
// No arithmetic on x86 or Arm produces exactly this NaN (their default NaN has a clear mantissa
// tail), so a poison pattern found in a finished output is memory that nobody wrote.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeprof {

// True while MOEPROF_POISON=1 was set at load or MoeprofSetPoison(1) was called last.
bool PoisonEnabled();

void PoisonFill(void* data, size_t size_bytes);

// Index of the first element whose bits are all set, or -1. `element_bytes` is 2 or 4.
int64_t FindPoison(const void* data, size_t count, size_t element_bytes);

}  // namespace moeprof

// Switches poison mode for the whole process; returns the mode before.
extern "C" __attribute__((visibility("default"))) int MoeprofSetPoison(int enabled);
