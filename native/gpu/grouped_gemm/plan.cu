#include "gpu/grouped_gemm/plan_kernel.h"
#include "gpu/grouped_gemm/plan_launch.h"

namespace moeprof::gpu {
namespace {

__global__ void __launch_bounds__(kPlanThreads) GroupedGemmPlan(PlanRequest request) {
  MakePlan(request, true, [](int32_t, int32_t, const int64_t*, const int64_t*) {});
}

}  // namespace

gpuError_t LaunchGroupedGemmPlan(gpuStream_t stream, const PlanRequest& request) {
  GroupedGemmPlan<<<1, kPlanThreads, 0, stream>>>(request);
  return gpuGetLastError();
}

}  // namespace moeprof::gpu
