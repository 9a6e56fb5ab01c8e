// Question: where in memory that XLA lends for one call may TMA and our plans lie?
//
// XLA refuses an alignment above 64 bytes; tensor maps need 128. So more is asked for, and the
// address is rounded up here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

constexpr size_t kScratchAlignment = 128;

// `bytes` of memory aligned to kScratchAlignment until the call's kernels end; null: there is none.
inline void* AlignedScratch(xla::ffi::ScratchAllocator& allocator, size_t bytes) {
  const auto memory = allocator.Allocate(bytes + kScratchAlignment);
  if (!memory) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(*memory);
  return reinterpret_cast<void*>((address + kScratchAlignment - 1) / kScratchAlignment *
                                 kScratchAlignment);
}

}  // namespace moeprof::gpu
