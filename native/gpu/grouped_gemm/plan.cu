#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/plan_launch.h"

namespace moeprof::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupsOfBlock = kWarps / 2;  // one warp makes one map

// Inclusive sum of `value` over the block's threads; `sums` has kWarps entries.
__device__ int64_t BlockSum(int64_t value, int64_t* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const int64_t below = __shfl_up_sync(0xFFFFFFFF, value, step);
    if (lane >= step) value += below;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += sums[w];
  return value;
}

__device__ void Report(LengthsFault* fault, LengthsFaultKind kind, int64_t element, int64_t index,
                       int64_t found, int64_t sum, int64_t expected) {
  if (fault == nullptr || atomicCAS_system(&fault->claimed, 0, 1) != 0) return;
  fault->index = index;
  fault->found = found;
  fault->sum = sum;
  fault->expected = expected;
  fault->element = element;
  __threadfence_system();
  *reinterpret_cast<volatile LengthsFaultKind*>(&fault->kind) = kind;
}

// What thread t learns of group `first + t`.
struct GroupSeen {
  int64_t length;  // as given
  int64_t begin;   // row, sound only where no group before is at fault
  LengthsFaultKind fault;
  int64_t offset;  // as given, where offsets are
};

__device__ GroupSeen ReadGroup(const PlanRequest& request, int32_t group, int64_t carry,
                               int64_t* sums) {
  const GroupLengths& lengths = request.lengths;
  GroupSeen seen{0, 0, LengthsFaultKind::kNone, 0};
  if (group < lengths.groups) {
    seen.length = ReadInteger(lengths.lengths, lengths.lengths_are_int64, group);
  }
  // A sum of clamped lengths cannot overflow and is past the rows where the true one is.
  const int64_t limit = int64_t{request.rows} + 1;
  const int64_t clamped = seen.length < 0 ? 0 : seen.length < limit ? seen.length : limit;
  const int64_t end = carry + BlockSum(clamped, sums);
  seen.begin = end - clamped;
  if (seen.length < 0) {
    seen.fault = LengthsFaultKind::kNegative;
  } else if (end > request.rows) {
    seen.fault = LengthsFaultKind::kPastRows;
  } else if (lengths.offsets != nullptr && group <= lengths.groups) {
    seen.offset = ReadInteger(lengths.offsets, lengths.offsets_are_int64, group);
    if (seen.offset != seen.begin) seen.fault = LengthsFaultKind::kNotTheSum;
  }
  return seen;
}

__device__ void ReportGroup(const PlanRequest& request, int32_t group, const GroupSeen& seen) {
  const bool offset = seen.fault == LengthsFaultKind::kNotTheSum;
  Report(request.fault, seen.fault, request.element, group, offset ? seen.offset : seen.length,
         seen.begin + seen.length, offset ? seen.begin : request.rows);
}

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
  MapPublish(&request.maps[2 * group + operand], SharedAddress(shared));
}

// Block 0 writes the plan; with maps, block i makes those of kGroupsOfBlock groups.
template <bool kMaps>
__device__ void MakePlan(const PlanRequest& request, const GroupMapsRequest* maps) {
  __shared__ int64_t sums[kWarps];
  __shared__ int64_t begins[kThreads], lengths[kThreads], carry[2];
  __shared__ int32_t first_fault;
  __shared__ alignas(128) CUtensorMap shared_maps[kMaps ? kWarps : 1];

  const int32_t groups = request.lengths.groups;
  const int32_t own_group = static_cast<int32_t>(blockIdx.x) * kGroupsOfBlock +
                            static_cast<int32_t>(threadIdx.x) / 32 / 2;
  int64_t rows_before = 0, units_before = 0;
  // One step past the last group, for the closing offset.
  for (int32_t first = 0; first <= groups; first += kThreads) {
    const int32_t group = first + static_cast<int32_t>(threadIdx.x);
    const GroupSeen seen = ReadGroup(request, group, rows_before, sums);
    const bool bad = seen.fault != LengthsFaultKind::kNone;
    if (__syncthreads_or(bad)) {
      if (blockIdx.x != 0) return;
      if (threadIdx.x == 0) first_fault = INT32_MAX;
      __syncthreads();
      if (bad) atomicMin(&first_fault, group);
      __syncthreads();
      if (bad && group == first_fault) ReportGroup(request, group, seen);
      if (threadIdx.x == 0) *request.plan.header = {0, 0, 1, 0};
      return;
    }
    const int32_t out_rows =
        request.variable_k ? request.out_rows : static_cast<int32_t>(seen.length);
    const int64_t units = group < groups ? UnitsOf(request.tiling, out_rows) : 0;
    const int64_t units_end = units_before + BlockSum(units, sums);
    begins[threadIdx.x] = seen.begin;
    lengths[threadIdx.x] = seen.length;
    if (threadIdx.x == kThreads - 1) {
      carry[0] = seen.begin + seen.length;
      carry[1] = units_end;
    }
    if (blockIdx.x == 0 && group <= groups) {
      request.plan.row_offsets[group] = static_cast<int32_t>(seen.begin);
      request.plan.unit_offsets[group] = static_cast<int32_t>(units_end - units);
      if (group == groups) {
        *request.plan.header = {static_cast<int32_t>(units_end), static_cast<int32_t>(seen.begin),
                                0, 0};
      }
    }
    __syncthreads();
    if constexpr (kMaps) {
      if (own_group >= first && own_group < min(first + kThreads, groups)) {
        const int warp = threadIdx.x / 32;
        MakeMap(*maps, own_group, warp % 2, begins[own_group - first], lengths[own_group - first],
                &shared_maps[warp]);
      }
    }
    rows_before = carry[0];
    units_before = carry[1];
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) GroupedGemmPlan(PlanRequest request) {
  MakePlan<false>(request, nullptr);
}

__global__ void __launch_bounds__(kThreads)
    GroupedGemmPlanWithMaps(PlanRequest request, const __grid_constant__ GroupMapsRequest maps) {
  MakePlan<true>(request, &maps);
}

}  // namespace

cudaError_t LaunchGroupedGemmPlan(cudaStream_t stream, const PlanRequest& request) {
  GroupedGemmPlan<<<1, kThreads, 0, stream>>>(request);
  return cudaGetLastError();
}

cudaError_t LaunchGroupedGemmPlanWithMaps(cudaStream_t stream, const PlanRequest& request,
                                          const GroupMapsRequest& maps) {
  const int wanted = CeilDiv(request.lengths.groups, kGroupsOfBlock);
  const int blocks = wanted > 0 ? wanted : 1;
  GroupedGemmPlanWithMaps<<<blocks, kThreads, 0, stream>>>(request, maps);
  return cudaGetLastError();
}

}  // namespace moeprof::gpu
