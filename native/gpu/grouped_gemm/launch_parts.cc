#include "gpu/grouped_gemm/launch_parts.h"

#include <algorithm>

namespace moeprof::gpu {
namespace {

// Multiprocessors of the current device.
int32_t Multiprocessors() {
  int device = 0, count = 0;
  if (gpuGetDevice(&device) != gpuSuccess) return 0;
  if (gpuMultiprocessorCount(&count, device) != gpuSuccess) {
    return 0;
  }
  return count;
}

PlanRequest PlanOf(const GroupLengths& lengths, int64_t rows, void* scratch,
                   const LengthsReport& report) {
  PlanRequest plan{};
  plan.lengths = lengths;
  plan.plan = PlanAt(scratch, lengths.groups);
  plan.report = report;
  plan.rows = static_cast<int32_t>(rows);
  return plan;
}

}  // namespace

std::string LaunchComplaint(const char* what, gpuError_t error) {
  if (error == gpuSuccess) return "";
  return std::string(what) + ": " + GpuErrorName(error) + ", " + gpuGetErrorString(error);
}

int32_t BlocksOf(const GemmChoice& choice) {
  const int32_t all = Multiprocessors();
  return std::max(1, choice.max_blocks > 0 ? std::min(choice.max_blocks, all) : all);
}

PlanRequest PlanOf(const GpuGroupedGemm& op, void* scratch, const LengthsReport& report) {
  return PlanOf(op.lengths, op.rows, scratch, report);
}

PlanRequest PlanOf(const GpuVariableKGemm& op, void* scratch, const LengthsReport& report) {
  PlanRequest plan = PlanOf(op.lengths, op.rows, scratch, report);
  plan.variable_k = true;
  plan.out_rows = static_cast<int32_t>(op.m);
  return plan;
}

}  // namespace moeprof::gpu
