#include "cpu/grouped_gemm_variable_k/launch.h"

#include <algorithm>
#include <vector>

#include "cpu/products/gemm_tile.h"
#include "cpu/products/huge_pages.h"
#include "cpu/products/work_queue.h"

namespace moeprof {
namespace {

// A tile of this size is zeroed and then added to while it is still in the cache, so the gradient
// crosses the memory bus once.
constexpr TileLimits kLimits{512, kMaxTileCols};

template <typename T, typename Out>
std::vector<Tile> PlanTiles(const VariableKGemm<T, Out>& op, const GroupOffsets& offsets,
                            int64_t workers) {
  double depth_total = 0;
  for (int64_t b = 0; b < op.batch; ++b) {
    for (int64_t g = 0; g < op.groups; ++g) {
      depth_total += static_cast<double>(std::max<int64_t>(offsets.length(b, g), 1));
    }
  }
  const double outputs = static_cast<double>(op.m) * static_cast<double>(op.n);
  const double grain = Grain(depth_total * outputs, workers);
  std::vector<Tile> tiles;
  for (int64_t b = 0; b < op.batch; ++b) {
    for (int64_t g = 0; g < op.groups; ++g) {
      CutIntoTiles(b, g, op.m, op.n, offsets.length(b, g), grain, kLimits, tiles);
    }
  }
  SortByCost(tiles);
  return tiles;
}

}  // namespace

template <typename T, typename Out>
bool LaunchVariableKGemm(xla::ffi::ThreadPool& pool, const VariableKGemm<T, Out>& op,
                         const GroupOffsets& offsets, int64_t max_threads) {
  if (op.batch == 0 || op.groups == 0 || op.m == 0 || op.n == 0) return true;
  PreferHugePages(op.out, op.batch * op.groups * op.m * op.n * sizeof(Out));
  const int64_t workers = WorkerCount(max_threads);
  const std::vector<Tile> tiles = PlanTiles(op, offsets, workers);
  return RunPieces(pool, static_cast<int64_t>(tiles.size()), workers,
                   [&](int64_t i) { ComputeTile(op, offsets, tiles[i]); });
}

#define MOEPROF_INSTANTIATE(T, Out)                                                              \
  template bool LaunchVariableKGemm<T, Out>(xla::ffi::ThreadPool&, const VariableKGemm<T, Out>&, \
                                            const GroupOffsets&, int64_t);
MOEPROF_INSTANTIATE(float, float)
MOEPROF_INSTANTIATE(BFloat16, BFloat16)
MOEPROF_INSTANTIATE(Float16, Float16)
MOEPROF_INSTANTIATE(BFloat16, float)
MOEPROF_INSTANTIATE(Float16, float)
#undef MOEPROF_INSTANTIATE

}  // namespace moeprof
