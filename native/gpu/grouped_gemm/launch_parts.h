// Question: what do the launches of grouped products have in common, whichever kernel they go to?
#pragma once

#include <cstdint>
#include <string>

#include "gpu/grouped_gemm/launch.h"
#include "gpu/grouped_gemm/plan_launch.h"

namespace moeprof::gpu {

// "", or what failed and how.
std::string LaunchComplaint(const char* what, gpuError_t error);

// Blocks that fill the current device, within the choice's limit; at least 1.
int32_t BlocksOf(const GemmChoice& choice);

// The plan of a product, all but its tiling.
PlanRequest PlanOf(const GpuGroupedGemm& op, void* scratch, const LengthsReport& report);
PlanRequest PlanOf(const GpuVariableKGemm& op, void* scratch, const LengthsReport& report);

}  // namespace moeprof::gpu
