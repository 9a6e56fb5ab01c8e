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

}  // namespace moeprof::gpu
