// Question: what do rows of a result on the GPU hold that no rank sent?
//
// Zero; in poison mode the NaN of common/nan_bits.h.
#pragma once

#include <cstdint>

namespace moeprof::gpu {

// Two times 16 bits; read at every call.
uint32_t UnusedRowBits();

}  // namespace moeprof::gpu

extern "C" {

// Switches poison mode for the whole process; returns the mode before. On from the start where
// MOEPROF_POISON=1.
__attribute__((visibility("default"))) int MoeprofGpuSetPoison(int enabled);
}
