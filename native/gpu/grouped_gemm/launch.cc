#include "gpu/grouped_gemm/launch.h"

#include <algorithm>

#include "gpu/grouped_gemm/plan_launch.h"
#include "gpu/grouped_gemm/plan_maps.h"
#include "gpu/grouped_gemm/simt.h"
#include "gpu/grouped_gemm/tensor_map.h"
#include "gpu/grouped_gemm/tiles.h"

namespace moeprof::gpu {
namespace {

std::string Complaint(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return "";
  return std::string(what) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Multiprocessors of the current device.
int32_t Multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 0;
  }
  return count;
}

int32_t Blocks(const GemmChoice& choice) {
  const int32_t all = Multiprocessors();
  return std::max(1, choice.max_blocks > 0 ? std::min(choice.max_blocks, all) : all);
}

// TMA copies rows of whole 16 bytes from 16-byte boundaries.
bool TakesTiles(ElementType type, const GemmChoice& choice, int64_t inner0, int64_t inner1,
                const void* a, const void* b, const void* out) {
  return type != ElementType::kFloat32 && choice.tile_cols != kSimtTile && inner0 > 0 &&
         inner0 % 8 == 0 && inner1 % 8 == 0 && Aligned(a) && Aligned(b) && Aligned(out);
}

// Narrow outputs take narrow tiles. Pairs of blocks share half of what they load: up to 31 %
// faster, and at most 2 % slower, at the measured shapes (docs/gpu.md).
Tiling TilesFor(const GemmChoice& choice, int64_t cols, int32_t blocks) {
  const int32_t tile_cols = choice.tile_cols > 0 ? choice.tile_cols : cols <= 128 ? 128 : 256;
  const bool pairs = tile_cols == 256 && choice.pairs != 1 && blocks > 1;
  return {kTileRows, tile_cols, static_cast<int32_t>(cols), pairs};
}

std::string LaunchSimtForward(cudaStream_t stream, const GpuGroupedGemm& op,
                              const PlanRequest& plan, int32_t blocks) {
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
  return Complaint("grouped GEMM kernel", LaunchSimt(stream, blocks * 4, op.type, false, args));
}

std::string LaunchSimtVariableK(cudaStream_t stream, const GpuVariableKGemm& op,
                                const PlanRequest& plan, int32_t blocks) {
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
  return Complaint("grouped GEMM kernel",
                   LaunchSimt(stream, blocks * 4, op.type, op.float_out, args));
}

}  // namespace

size_t GroupedGemmScratchBytes(int64_t groups) {
  return PlanBytes(groups) + 2 * groups * kMapBytes;
}

std::string LaunchGroupedGemm(cudaStream_t stream, const GpuGroupedGemm& op, void* scratch,
                              const LengthsReport& report, const GemmChoice& choice) {
  if (op.rows == 0 || op.n == 0) return "";
  const int32_t blocks = Blocks(choice);
  const bool tiles =
      TakesTiles(op.type, choice, op.k, op.n, op.a, op.b, op.out) && op.lengths.groups > 0;
  PlanRequest plan{};
  plan.lengths = op.lengths;
  plan.plan = PlanAt(scratch, op.lengths.groups);
  plan.report = report;
  plan.rows = static_cast<int32_t>(op.rows);
  plan.tiling = tiles ? TilesFor(choice, op.n, blocks)
                      : Tiling{kSimtTile, kSimtTile, static_cast<int32_t>(op.n), false};
  if (!tiles) {
    const cudaError_t error = LaunchGroupedGemmPlan(stream, plan);
    if (error != cudaSuccess) return Complaint("grouped GEMM plan", error);
    return LaunchSimtForward(stream, op, plan, blocks);
  }

  TileKernelArgs args{};
  std::string complaint = EncodeMap(op.type, {op.a, 0, op.rows, op.k}, &args.a);
  if (complaint.empty()) {
    const int64_t groups = op.lengths.groups;
    complaint = op.trans_b ? EncodeMap(op.type, {op.b, groups, op.n, op.k}, &args.b)
                           : EncodeMap(op.type, {op.b, groups, op.k, op.n}, &args.b);
  }
  if (complaint.empty()) complaint = EncodeMap(op.type, {op.out, 0, op.rows, op.n}, &args.out);
  if (!complaint.empty()) return complaint;
  const cudaError_t error = LaunchGroupedGemmPlan(stream, plan);
  if (error != cudaSuccess) return Complaint("grouped GEMM plan", error);
  args.out_data = op.out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = op.lengths.groups;
  args.rows = op.rows;
  args.depth = static_cast<int32_t>(op.k);
  const TileLaunch launch{stream, blocks};
  return Complaint("grouped GEMM kernel", op.type == ElementType::kBFloat16
                                              ? LaunchTilesBFloat16(launch, args, op.trans_b)
                                              : LaunchTilesFloat16(launch, args, op.trans_b));
}

std::string LaunchVariableKGemm(cudaStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                const LengthsReport& report, const GemmChoice& choice) {
  if (op.lengths.groups == 0 || op.m == 0 || op.n == 0) return "";
  const int32_t blocks = Blocks(choice);
  const bool tiles = TakesTiles(op.type, choice, op.m, op.n, op.lhs, op.rhs, op.out) && op.rows > 0;
  PlanRequest plan{};
  plan.lengths = op.lengths;
  plan.plan = PlanAt(scratch, op.lengths.groups);
  plan.report = report;
  plan.rows = static_cast<int32_t>(op.rows);
  plan.variable_k = true;
  plan.out_rows = static_cast<int32_t>(op.m);
  plan.tiling = tiles ? TilesFor(choice, op.n, blocks)
                      : Tiling{kSimtTile, kSimtTile, static_cast<int32_t>(op.n), false};
  if (!tiles) {
    const cudaError_t error = LaunchGroupedGemmPlan(stream, plan);
    if (error != cudaSuccess) return Complaint("grouped GEMM plan", error);
    return LaunchSimtVariableK(stream, op, plan, blocks);
  }

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
  const cudaError_t error = LaunchGroupedGemmPlanWithMaps(stream, plan, maps);
  if (error != cudaSuccess) return Complaint("grouped GEMM plan", error);
  args.group_maps = maps.maps;
  args.out_data = op.out;
  args.plan = plan.plan;
  args.tiling = plan.tiling;
  args.groups = op.lengths.groups;
  args.rows = op.rows;
  args.m = plan.out_rows;
  const TileLaunch launch{stream, blocks};
  return Complaint("grouped GEMM kernel",
                   op.type == ElementType::kBFloat16
                       ? LaunchVariableKTilesBFloat16(launch, args, op.float_out)
                       : LaunchVariableKTilesFloat16(launch, args, op.float_out));
}

}  // namespace moeprof::gpu
