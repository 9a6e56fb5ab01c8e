// Question: what does the kernel that plans a grouped GEMM take?
#pragma once

#include <cstdint>

#include "gpu/grouped_gemm/lengths_report.h"
#include "gpu/grouped_gemm/plan.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

struct PlanRequest {
  GroupLengths lengths;
  Plan plan;
  LengthsReport report;  // of an unsound length
  int32_t rows;          // of the ragged operand; the lengths sum to at most as many
  bool variable_k;       // groups cut the depth: every group's output has `out_rows` rows
  int32_t out_rows;
  Tiling tiling;
};

gpuError_t LaunchGroupedGemmPlan(gpuStream_t stream, const PlanRequest& request);

}  // namespace moeprof::gpu
