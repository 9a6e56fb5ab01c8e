#include "cpu/grouped_gemm/launch.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/products/gemm_tile.h"
#include "cpu/products/huge_pages.h"
#include "cpu/products/work_queue.h"

namespace moeprof {
namespace {

// Group index of the pieces that only write zeros.
constexpr int64_t kTail = -1;
constexpr int64_t kTailPieceElements = int64_t{1} << 20;

template <typename T>
TileLimits LimitsOf() {
  if constexpr (std::is_same_v<T, float>) {
    constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
    return {kAny, kAny};
  } else {
    return {kMaxTileRows, kMaxTileCols};
  }
}

void AppendTail(int64_t batch, int64_t begin, int64_t end, int64_t n, std::vector<Tile>& tiles) {
  const int64_t step = std::max<int64_t>(1, kTailPieceElements / n);
  for (int64_t row = begin; row < end; row += step) {
    const int64_t rows = std::min(step, end - row);
    tiles.push_back({batch, kTail, row, rows, 0, n, static_cast<double>(rows * n)});
  }
}

template <typename T>
std::vector<Tile> PlanTiles(const GroupedGemm<T>& op, const GroupOffsets& offsets,
                            int64_t workers) {
  double rows_used = 0;
  for (int64_t b = 0; b < op.batch; ++b) rows_used += static_cast<double>(offsets.total(b));
  const double depth = static_cast<double>(std::max<int64_t>(op.k, 1));
  const double grain = Grain(rows_used * static_cast<double>(op.n) * depth, workers);
  std::vector<Tile> tiles;
  for (int64_t b = 0; b < op.batch; ++b) {
    for (int64_t g = 0; g < op.groups; ++g) {
      CutIntoTiles(b, g, offsets.length(b, g), op.n, op.k, grain, LimitsOf<T>(), tiles);
    }
    AppendTail(b, offsets.total(b), op.rows, op.n, tiles);
  }
  SortByCost(tiles);
  return tiles;
}

}  // namespace

template <typename T>
bool LaunchGroupedGemm(xla::ffi::ThreadPool& pool, const GroupedGemm<T>& op,
                       const GroupOffsets& offsets, int64_t max_threads) {
  if (op.batch == 0 || op.rows == 0 || op.n == 0) return true;
  PreferHugePages(op.out, op.batch * op.rows * op.n * sizeof(T));
  const int64_t workers = WorkerCount(max_threads);
  const std::vector<Tile> tiles = PlanTiles(op, offsets, workers);
  return RunPieces(pool, static_cast<int64_t>(tiles.size()), workers, [&](int64_t i) {
    const Tile& tile = tiles[i];
    if (tile.group == kTail) return ZeroRows(op, tile.batch, tile.row0, tile.rows);
    ComputeTile(op, offsets, tile);
  });
}

#define MOEPROF_INSTANTIATE(T)                                                     \
  template bool LaunchGroupedGemm<T>(xla::ffi::ThreadPool&, const GroupedGemm<T>&, \
                                     const GroupOffsets&, int64_t);
MOEPROF_INSTANTIATE(float)
MOEPROF_INSTANTIATE(BFloat16)
MOEPROF_INSTANTIATE(Float16)
#undef MOEPROF_INSTANTIATE

}  // namespace moeprof
