#include "gpu/grouped_gemm/launch.h"

#include "gpu/grouped_gemm/launch_parts.h"
#include "gpu/grouped_gemm/launch_plain.h"
#include "gpu/grouped_gemm/plan_launch.h"
#include "gpu/grouped_gemm/plan_maps.h"
#include "gpu/grouped_gemm/simt.h"
#include "gpu/grouped_gemm/tensor_map.h"
#include "gpu/grouped_gemm/tiles.h"

namespace moeprof::gpu {
namespace {

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// TMA copies rows of whole 16 bytes from 16-byte boundaries.
bool TakesTiles(ElementType type, const GemmChoice& choice, int64_t inner0, int64_t inner1,
                const void* a, const void* b, const void* out) {
  return type != ElementType::kFloat32 && choice.tile_cols != kSimtTile && inner0 > 0 &&
         inner0 % 8 == 0 && inner1 % 8 == 0 && Aligned(a) && Aligned(b) && Aligned(out);
}

// Narrow outputs take narrow tiles. Pairs of blocks share half of what they load; rates with and
// without are in docs/gpu.md.
Tiling TilesFor(const GemmChoice& choice, int64_t cols, int32_t blocks) {
  const int32_t tile_cols = choice.tile_cols > 0 ? choice.tile_cols : cols <= 128 ? 128 : 256;
  const bool pairs = tile_cols == 256 && choice.pairs != 1 && blocks > 1;
  return {kTileRows, tile_cols, static_cast<int32_t>(cols), pairs};
}

}  // namespace

size_t GroupedGemmScratchBytes(int64_t groups) {
  return PlanBytes(groups) + 2 * groups * kMapBytes;
}

std::string LaunchGroupedGemm(gpuStream_t stream, const GpuGroupedGemm& op, void* scratch,
                              const LengthsReport& report, const GemmChoice& choice) {
  if (op.rows == 0 || op.n == 0) return "";
  const int32_t blocks = BlocksOf(choice);
  const bool tiles =
      TakesTiles(op.type, choice, op.k, op.n, op.a, op.b, op.out) && op.lengths.groups > 0;
  if (!tiles) return LaunchPlainForward(stream, op, scratch, report, blocks);

  PlanRequest plan = PlanOf(op, scratch, report);
  plan.tiling = TilesFor(choice, op.n, blocks);
  TileKernelArgs args{};
  std::string complaint = EncodeMap(op.type, {op.a, 0, op.rows, op.k}, &args.a);
  if (complaint.empty()) {
    const int64_t groups = op.lengths.groups;
    complaint = op.trans_b ? EncodeMap(op.type, {op.b, groups, op.n, op.k}, &args.b)
                           : EncodeMap(op.type, {op.b, groups, op.k, op.n}, &args.b);
  }
  if (complaint.empty()) complaint = EncodeMap(op.type, {op.out, 0, op.rows, op.n}, &args.out);
  if (!complaint.empty()) return complaint;
  const gpuError_t error = LaunchGroupedGemmPlan(stream, plan);
  if (error != gpuSuccess) return LaunchComplaint("grouped GEMM plan", error);
  args.out_data = op.out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = op.lengths.groups;
  args.rows = op.rows;
  args.depth = static_cast<int32_t>(op.k);
  const TileLaunch launch{stream, blocks};
  return LaunchComplaint("grouped GEMM kernel", op.type == ElementType::kBFloat16
                                                    ? LaunchTilesBFloat16(launch, args, op.trans_b)
                                                    : LaunchTilesFloat16(launch, args, op.trans_b));
}

std::string LaunchVariableKGemm(gpuStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                const LengthsReport& report, const GemmChoice& choice) {
  if (op.lengths.groups == 0 || op.m == 0 || op.n == 0) return "";
  const int32_t blocks = BlocksOf(choice);
  const bool tiles = TakesTiles(op.type, choice, op.m, op.n, op.lhs, op.rhs, op.out) && op.rows > 0;
  if (!tiles) return LaunchPlainVariableK(stream, op, scratch, report, blocks);

  PlanRequest plan = PlanOf(op, scratch, report);
  plan.tiling = TilesFor(choice, op.n, blocks);
  GroupMapsRequest maps{};
  maps.operands = 2;
  maps.lhs = static_cast<const char*>(op.lhs);
  maps.rhs = static_cast<const char*>(op.rhs);
  maps.lhs_row_bytes = op.m * BytesOf(op.type);
  maps.rhs_row_bytes = op.n * BytesOf(op.type);
  maps.maps =
      reinterpret_cast<CUtensorMap*>(static_cast<char*>(scratch) + PlanBytes(op.lengths.groups));
  TileKernelArgs args{};
  std::string complaint = EncodeMap(op.type, {op.lhs, 0, op.rows, op.m}, &maps.lhs_map);
  if (complaint.empty()) {
    complaint = EncodeMap(op.type, {op.rhs, 0, op.rows, op.n}, &maps.rhs_map);
  }
  // float32 results are written from registers, without a map.
  if (complaint.empty() && !op.float_out) {
    complaint = EncodeMap(op.type, {op.out, op.lengths.groups, op.m, op.n}, &args.out);
  }
  if (!complaint.empty()) return complaint;
  const gpuError_t error = LaunchGroupedGemmPlanWithMaps(stream, plan, maps);
  if (error != gpuSuccess) return LaunchComplaint("grouped GEMM plan", error);
  args.group_maps = maps.maps;
  args.out_data = op.out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = op.lengths.groups;
  args.rows = op.rows;
  args.m = plan.out_rows;
  const TileLaunch launch{stream, blocks};
  return LaunchComplaint("grouped GEMM kernel",
                         op.type == ElementType::kBFloat16
                             ? LaunchVariableKTilesBFloat16(launch, args, op.float_out)
                             : LaunchVariableKTilesFloat16(launch, args, op.float_out));
}

}  // namespace moeprof::gpu
