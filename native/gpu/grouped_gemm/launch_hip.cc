// On AMD GPUs every product goes to plain multiply-adds: the tile kernels are made of Hopper's
// instructions.
#include "gpu/grouped_gemm/launch.h"
#include "gpu/grouped_gemm/launch_parts.h"
#include "gpu/grouped_gemm/launch_plain.h"

namespace moeprof::gpu {

size_t GroupedGemmScratchBytes(int64_t groups) { return PlanBytes(groups); }

std::string LaunchGroupedGemm(gpuStream_t stream, const GpuGroupedGemm& op, void* scratch,
                              const LengthsReport& report, const GemmChoice& choice) {
  if (op.rows == 0 || op.n == 0) return "";
  return LaunchPlainForward(stream, op, scratch, report, BlocksOf(choice));
}

std::string LaunchVariableKGemm(gpuStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                const LengthsReport& report, const GemmChoice& choice) {
  if (op.lengths.groups == 0 || op.m == 0 || op.n == 0) return "";
  return LaunchPlainVariableK(stream, op, scratch, report, BlocksOf(choice));
}

}  // namespace moeprof::gpu
