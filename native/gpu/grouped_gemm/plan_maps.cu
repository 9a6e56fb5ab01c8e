#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/plan_kernel.h"
#include "gpu/grouped_gemm/plan_maps.h"

namespace moeprof::gpu {
namespace {

// One warp makes one map.
int32_t GroupsOfBlock(int32_t operands) { return kPlanWarps / operands; }

// Makes the maps of one group: a warp copies the whole operand's map, sets the first row and the
// number of rows, and publishes it. An empty group's map is never used; it keeps one row.
__device__ void MakeMap(const GroupMapsRequest& request, int32_t group, int operand, int64_t begin,
                        int64_t length, CUtensorMap* shared) {
  const int lane = threadIdx.x % 32;
  const CUtensorMap& whole = operand == 0 ? request.lhs_map : request.rhs_map;
  reinterpret_cast<uint32_t*>(shared)[lane] = reinterpret_cast<const uint32_t*>(&whole)[lane];
  __syncwarp();
  if (lane == 0) {
    const char* base = operand == 0 ? request.lhs : request.rhs;
    const int64_t row_bytes = operand == 0 ? request.lhs_row_bytes : request.rhs_row_bytes;
    MapSetAddress(SharedAddress(shared), base + (length > 0 ? begin : 0) * row_bytes);
    MapSetRows(SharedAddress(shared), length > 0 ? static_cast<uint32_t>(length) : 1u);
  }
  __syncwarp();
  MapPublish(&request.maps[request.operands * group + operand], SharedAddress(shared));
}

// Block 0 writes the plan; block i makes the maps of `groups_of_block` groups.
__global__ void __launch_bounds__(kPlanThreads)
    GroupedGemmPlanWithMaps(PlanRequest request, const __grid_constant__ GroupMapsRequest maps,
                            int32_t groups_of_block) {
  __shared__ alignas(128) CUtensorMap shared[kPlanWarps];
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t group = static_cast<int32_t>(blockIdx.x) * groups_of_block + warp / maps.operands;
  MakePlan(request, blockIdx.x == 0,
           [&](int32_t first, int32_t end, const int64_t* begins, const int64_t* lengths) {
             if (group < first || group >= end) return;
             MakeMap(maps, group, warp % maps.operands, begins[group - first],
                     lengths[group - first], &shared[warp]);
           });
}

}  // namespace

cudaError_t LaunchGroupedGemmPlanWithMaps(cudaStream_t stream, const PlanRequest& request,
                                          const GroupMapsRequest& maps) {
  const int32_t groups_of_block = GroupsOfBlock(maps.operands);
  const int32_t wanted = CeilDiv(request.lengths.groups, groups_of_block);
  const int32_t blocks = wanted > 0 ? wanted : 1;
  GroupedGemmPlanWithMaps<<<blocks, kPlanThreads, 0, stream>>>(request, maps, groups_of_block);
  return cudaGetLastError();
}

}  // namespace moeprof::gpu
