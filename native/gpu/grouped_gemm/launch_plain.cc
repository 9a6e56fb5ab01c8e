#include "gpu/grouped_gemm/launch_plain.h"

#include "gpu/grouped_gemm/launch_parts.h"
#include "gpu/grouped_gemm/simt.h"

namespace moeprof::gpu {
namespace {

constexpr int32_t kBlocksPerMultiprocessor = 4;

Tiling TilingOf(int64_t cols) { return {kSimtTile, kSimtTile, static_cast<int32_t>(cols), false}; }

}  // namespace

std::string LaunchPlainForward(gpuStream_t stream, const GpuGroupedGemm& op, void* scratch,
                               const LengthsReport& report, int32_t blocks) {
  PlanRequest plan = PlanOf(op, scratch, report);
  plan.tiling = TilingOf(op.n);
  const gpuError_t error = LaunchGroupedGemmPlan(stream, plan);
  if (error != gpuSuccess) return Complaint("grouped GEMM plan", error);
  SimtArgs args{};
  args.a = op.a;
  args.b = op.b;
  args.out = op.out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = plan.lengths.groups;
  args.rows = op.rows;
  args.depth = static_cast<int32_t>(op.k);
  args.a_first = args.a_row = op.k;
  args.a_depth = 1;
  args.b_group = op.k * op.n;
  args.b_depth = op.trans_b ? 1 : op.n;
  args.b_col = op.trans_b ? op.k : 1;
  return Complaint("grouped GEMM kernel",
                   LaunchSimt(stream, blocks * kBlocksPerMultiprocessor, op.type, false, args));
}

std::string LaunchPlainVariableK(gpuStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                 const LengthsReport& report, int32_t blocks) {
  PlanRequest plan = PlanOf(op, scratch, report);
  plan.tiling = TilingOf(op.n);
  const gpuError_t error = LaunchGroupedGemmPlan(stream, plan);
  if (error != gpuSuccess) return Complaint("grouped GEMM plan", error);
  SimtArgs args{};
  args.a = op.lhs;
  args.b = op.rhs;
  args.out = op.out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = plan.lengths.groups;
  args.rows = op.rows;
  args.variable_k = true;
  args.m = static_cast<int32_t>(op.m);
  args.a_first = args.a_depth = op.m;
  args.a_row = 1;
  args.b_first = args.b_depth = op.n;
  args.b_col = 1;
  return Complaint("grouped GEMM kernel", LaunchSimt(stream, blocks * kBlocksPerMultiprocessor,
                                                     op.type, op.float_out, args));
}

}  // namespace moeprof::gpu
