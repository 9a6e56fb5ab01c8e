// Question: what does a tile kernel of the grouped GEMM take?
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/work_units.h"

namespace moeprof::gpu {

struct TileKernelArgs {
  CUtensorMap a;                  // [rows, k]; unused for variable K
  CUtensorMap b;                  // [groups, k, n] or [groups, n, k]; unused for variable K
  CUtensorMap out;                // [rows, n], or [groups, m, n] for variable K
  const CUtensorMap* group_maps;  // variable K: two per group
  void* out_data;
  Plan plan;
  Tiling tiling;
  int32_t groups;
  int64_t rows;   // of the ragged operand
  int32_t depth;  // k; variable K: 0
  int32_t m;      // variable K: rows of each group's output
};

}  // namespace moeprof::gpu
