// Question: how does a block of threads turn the groups' lengths into a plan?
//
// Threads take one group each, kPlanThreads at a time, and two sums over the block give every
// group's first row and first unit. Every block of a launch goes through all groups, as lengths
// are few; only one of them writes.
#pragma once

#include <cstdint>

#include "gpu/faults/fault_sink.h"
#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/plan_launch.h"
#include "gpu/runtime/device_code.h"

namespace moeprof::gpu {

constexpr int kPlanThreads = 512;  // 256 groups and their closing offset in one pass
constexpr int kPlanWarps = kPlanThreads / 32;

// Inclusive sum of `value` over the block's threads; `sums` has kPlanWarps entries.
__device__ inline int64_t BlockSum(int64_t value, int64_t* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const int64_t below = ShuffleUp(value, step);
    if (lane >= step) value += below;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += sums[w];
  return value;
}

// What thread t learns of group `first + t`.
struct GroupSeen {
  int64_t length;  // as given
  int64_t begin;   // row, sound only where no group before is at fault
  FaultKind fault;
  int64_t offset;  // as given, where offsets are
};

__device__ inline GroupSeen ReadGroup(const PlanRequest& request, int32_t group, int64_t carry,
                                      int64_t* sums) {
  const GroupLengths& lengths = request.lengths;
  GroupSeen seen{0, 0, FaultKind::kNone, 0};
  if (group < lengths.groups) {
    seen.length = ReadInteger(lengths.lengths, lengths.lengths_are_int64, group);
  }
  // A sum of clamped lengths cannot overflow and is past the rows where the true one is.
  const int64_t limit = int64_t{request.rows} + 1;
  const int64_t clamped = seen.length < 0 ? 0 : seen.length < limit ? seen.length : limit;
  const int64_t end = carry + BlockSum(clamped, sums);
  seen.begin = end - clamped;
  if (seen.length < 0) {
    seen.fault = FaultKind::kNegativeLength;
  } else if (end > request.rows) {
    seen.fault = FaultKind::kLengthsPastRows;
  } else if (lengths.offsets != nullptr && group <= lengths.groups) {
    seen.offset = ReadInteger(lengths.offsets, lengths.offsets_are_int64, group);
    if (seen.offset != seen.begin) seen.fault = FaultKind::kOffsetsNotSums;
  }
  return seen;
}

__device__ inline void ReportGroup(const PlanRequest& request, int32_t group,
                                   const GroupSeen& seen) {
  const bool offset = seen.fault == FaultKind::kOffsetsNotSums;
  const LengthsReport& report = request.report;
  ReportFault(report.faults, report.op, seen.fault, group, offset ? seen.offset : seen.length,
              seen.begin + seen.length, offset ? seen.begin : request.rows, report.element);
}

// Makes the plan and writes it where `writes`. After each pass over groups first .. end - 1 all
// threads of the block call `each(first, end, begins, lengths)`, with the first row and the length
// of group g at [g - first]; not of groups in a pass with a fault, nor after it.
template <typename Each>
__device__ void MakePlan(const PlanRequest& request, bool writes, const Each& each) {
  __shared__ int64_t sums[kPlanWarps];
  __shared__ int64_t begins[kPlanThreads], lengths[kPlanThreads], carry[2];
  __shared__ int32_t first_fault;

  const int32_t groups = request.lengths.groups;
  int64_t rows_before = 0, units_before = 0;
  // One step past the last group, for the closing offset.
  for (int32_t first = 0; first <= groups; first += kPlanThreads) {
    const int32_t group = first + static_cast<int32_t>(threadIdx.x);
    const GroupSeen seen = ReadGroup(request, group, rows_before, sums);
    const bool bad = seen.fault != FaultKind::kNone;
    if (__syncthreads_or(bad)) {
      if (!writes) return;
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
    if (threadIdx.x == kPlanThreads - 1) {
      carry[0] = seen.begin + seen.length;
      carry[1] = units_end;
    }
    if (writes && group <= groups) {
      request.plan.row_offsets[group] = static_cast<int32_t>(seen.begin);
      request.plan.unit_offsets[group] = static_cast<int32_t>(units_end - units);
      if (group == groups) {
        *request.plan.header = {static_cast<int32_t>(units_end), static_cast<int32_t>(seen.begin),
                                0, 0};
      }
    }
    __syncthreads();
    each(first, min(first + kPlanThreads, groups), begins, lengths);
    rows_before = carry[0];
    units_before = carry[1];
    __syncthreads();
  }
}

}  // namespace moeprof::gpu
