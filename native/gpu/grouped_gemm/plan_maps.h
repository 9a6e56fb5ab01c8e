// Question: what does the kernel that makes a plan and the tensor maps of the groups take?
//
// A group's map ends with its last row, so that TMA fills with zeros what lies behind.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/grouped_gemm/plan_launch.h"

namespace moeprof::gpu {

// Maps of one or two whole operands [rows, width], and where the maps of their groups go: lhs of
// group g at maps[operands * g], and rhs, where there are two operands, behind it.
struct GroupMapsRequest {
  int32_t operands;
  CUtensorMap lhs_map, rhs_map;
  const char* lhs;
  const char* rhs;
  int64_t lhs_row_bytes, rhs_row_bytes;
  CUtensorMap* maps;
};

cudaError_t LaunchGroupedGemmPlanWithMaps(cudaStream_t stream, const PlanRequest& request,
                                          const GroupMapsRequest& maps);

}  // namespace moeprof::gpu
