#include "gpu/grouped_gemm/launch_plain.h"

#include "gpu/grouped_gemm/launch_parts.h"
#include "gpu/grouped_gemm/simt.h"

namespace moeprof::gpu {
namespace {

constexpr int32_t kBlocksPerMultiprocessor = 4;

Tiling TilingOf(int64_t cols) { return {kSimtTile, kSimtTile, static_cast<int32_t>(cols), false}; }

// What both products have; the strides and the depth are still to be set.
SimtArgs ArgsOf(const PlanRequest& plan, const void* a, const void* b, void* out) {
  SimtArgs args{};
  args.a = a;
  args.b = b;
  args.out = out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = plan.lengths.groups;
  args.rows = plan.rows;
  return args;
}

}  // namespace

std::string LaunchPlainForward(gpuStream_t stream, const GpuGroupedGemm& op, void* scratch,
                               const LengthsReport& report, int32_t blocks) {
  PlanRequest plan = PlanOf(op, scratch, report);
  plan.tiling = TilingOf(op.n);
  const gpuError_t error = LaunchGroupedGemmPlan(stream, plan);
  if (error != gpuSuccess) return LaunchComplaint("grouped GEMM plan", error);
  SimtArgs args = ArgsOf(plan, op.a, op.b, op.out);
  args.depth = static_cast<int32_t>(op.k);
  args.a_first = args.a_row = op.k;
  args.a_depth = 1;
  args.b_group = op.k * op.n;
  args.b_depth = op.trans_b ? 1 : op.n;
  args.b_col = op.trans_b ? op.k : 1;
  return LaunchComplaint(
      "grouped GEMM kernel",
      LaunchSimt(stream, blocks * kBlocksPerMultiprocessor, op.type, false, args));
}

std::string LaunchPlainVariableK(gpuStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                 const LengthsReport& report, int32_t blocks) {
  PlanRequest plan = PlanOf(op, scratch, report);
  plan.tiling = TilingOf(op.n);
  const gpuError_t error = LaunchGroupedGemmPlan(stream, plan);
  if (error != gpuSuccess) return LaunchComplaint("grouped GEMM plan", error);
  SimtArgs args = ArgsOf(plan, op.lhs, op.rhs, op.out);
  args.variable_k = true;
  args.m = static_cast<int32_t>(op.m);
  args.a_first = args.a_depth = op.m;
  args.a_row = 1;
  args.b_first = args.b_depth = op.n;
  args.b_col = 1;
  return LaunchComplaint(
      "grouped GEMM kernel",
      LaunchSimt(stream, blocks * kBlocksPerMultiprocessor, op.type, op.float_out, args));
}

}  // namespace moeprof::gpu
