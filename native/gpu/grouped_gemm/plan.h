// Question: what must be known about the groups before the tiles of a grouped GEMM can start?
//
// The lengths are on the device and stay there. One small kernel checks them and writes a plan to
// scratch memory: where each group's rows begin, and how many units of work come before it. For a
// variable-K product on tensor cores it also makes two tensor maps per group that end with the
// group's last row, so that TMA fills with zeros what lies behind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/grouped_gemm/group_lengths.h"
#include "gpu/grouped_gemm/work_units.h"
#if defined(MOEPROF_DEVICE_CODE)
#include "gpu/runtime/device_code.h"
#endif

namespace moeprof::gpu {

// In scratch memory: the header, groups + 1 row offsets, groups + 1 sums of units.
struct PlanHeader {
  int32_t units;      // of all groups
  int32_t rows_used;  // rows that belong to a group; 0 in a broken plan
  int32_t broken;     // 1: the lengths are not sound; no unit may run, every result is NaN
  int32_t next_unit;  // counts the units handed out beyond each cluster's first
};

struct Plan {
  PlanHeader* header;
  int32_t* row_offsets;
  int32_t* unit_offsets;
};

// Scratch: the plan, then at a multiple of 128 two maps of 128 bytes per group where asked for.
constexpr size_t kMapBytes = 128;
inline size_t PlanBytes(int64_t groups) {
  const size_t bytes = sizeof(PlanHeader) + 2 * (groups + 1) * sizeof(int32_t);
  return (bytes + 127) / 128 * 128;
}
inline Plan PlanAt(void* scratch, int64_t groups) {
  auto* header = static_cast<PlanHeader*>(scratch);
  auto* offsets = reinterpret_cast<int32_t*>(header + 1);
  return {header, offsets, offsets + groups + 1};
}

#if defined(MOEPROF_DEVICE_CODE)
// The group that unit `unit` belongs to, at or after `group`; a whole warp asks together.
__device__ __forceinline__ int32_t GroupOfUnit(const int32_t* unit_offsets, int32_t groups,
                                               int32_t unit, int32_t group) {
  const int32_t lane = threadIdx.x % 32;
  for (;; group += 32) {
    const int32_t candidate = group + lane;
    const bool after = candidate >= groups || unit_offsets[candidate + 1] > unit;
    const uint32_t found = Ballot(after);
    if (found != 0) return group + __ffs(found) - 1;
  }
}

// Writes zeros to the bytes from row `rows_used` of an output on, or where the plan is broken NaN
// to all of it; `thread` of `threads` threads. The output is aligned to `sizeof(Word)`.
template <typename Word>
__device__ __forceinline__ void FillUnused(void* out, int64_t first_byte, int64_t end_byte,
                                           bool broken, int64_t thread, int64_t threads) {
  Word value;
  auto* words = reinterpret_cast<uint32_t*>(&value);
  if constexpr (sizeof(Word) >= 4) {
    for (int i = 0; i < static_cast<int>(sizeof(Word) / 4); ++i) words[i] = broken ? ~0u : 0u;
  } else {
    value = broken ? Word(~0u) : Word(0);
  }
  auto* data = static_cast<Word*>(out);
  const int64_t end = end_byte / static_cast<int64_t>(sizeof(Word));
  for (int64_t i = first_byte / static_cast<int64_t>(sizeof(Word)) + thread; i < end;
       i += threads) {
    data[i] = value;
  }
}
#endif

}  // namespace moeprof::gpu
