// Question: is poison mode on, and what does poisoned memory look like?
//
// There are two NaNs, so that two faults are told apart:
//
//   rows that hold nothing   0xFFC1 in every 16 bits: a NaN in float32, bfloat16 and float16 whose
//                            bits arithmetic may change, but never to all ones
//   outputs not yet written  all bits set: a NaN in the same types
//
// Arithmetic passes on the NaN that it was given, or makes the machine's own, whose mantissa is not
// all ones on x86 and Arm. So all ones in a finished output is memory that nobody wrote, and any
// other NaN was computed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeprof {

// True while MOEPROF_POISON=1 was set at load or MoeprofSetPoison(1) was called last.
bool PoisonEnabled();

void PoisonRows(void* data, size_t size_bytes);  // `size_bytes` is even
void PoisonOutput(void* data, size_t size_bytes);

// Zero; poisoned rows where `poison`.
void FillUnusedRows(void* data, size_t size_bytes, bool poison);

// Index of the first element that is still as PoisonOutput left it, or -1. `element_bytes` is 2 or
// 4.
int64_t FindUnwritten(const void* data, size_t count, size_t element_bytes);

}  // namespace moeprof

// Switches poison mode for the whole process; returns the mode before.
extern "C" __attribute__((visibility("default"))) int MoeprofSetPoison(int enabled);
