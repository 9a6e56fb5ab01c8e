#include "cpu/products/tile_plan.h"

#include <algorithm>
#include <cmath>

namespace moeprof {
namespace {

constexpr int64_t kThinnestCols = 256;
constexpr int64_t kThinnestRows = 256;
constexpr int64_t kRounding = 16;  // whole vectors and cache lines
constexpr double kPiecesPerWorker = 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Size of each of `pieces` nearly equal parts, no larger than `limit`.
int64_t PieceSize(int64_t size, int64_t pieces, int64_t limit) {
  const int64_t even = CeilDiv(CeilDiv(size, pieces), kRounding) * kRounding;
  return std::min(even, limit);
}

}  // namespace

double Grain(double total_cost, int64_t workers) {
  return workers <= 1 ? total_cost : total_cost / (static_cast<double>(workers) * kPiecesPerWorker);
}

void CutIntoTiles(int64_t batch, int64_t group, int64_t rows, int64_t cols, int64_t depth,
                  double grain, const TileLimits& limits, std::vector<Tile>& tiles) {
  const double unit = static_cast<double>(std::max<int64_t>(depth, 1));
  const double cost = static_cast<double>(rows) * static_cast<double>(cols) * unit;
  const auto wanted = static_cast<int64_t>(std::min(std::ceil(cost / std::max(grain, 1.0)), 1e6));
  const int64_t col_pieces =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, cols / kThinnestCols));
  const int64_t row_pieces = std::clamp<int64_t>(CeilDiv(wanted, col_pieces), 1,
                                                 std::max<int64_t>(1, rows / kThinnestRows));
  const int64_t tile_cols = PieceSize(cols, col_pieces, limits.max_cols);
  const int64_t tile_rows = PieceSize(rows, row_pieces, limits.max_rows);
  for (int64_t i = 0; i < rows; i += tile_rows) {
    for (int64_t j = 0; j < cols; j += tile_cols) {
      const int64_t height = std::min(tile_rows, rows - i);
      const int64_t width = std::min(tile_cols, cols - j);
      const double tile_cost = static_cast<double>(height) * static_cast<double>(width) * unit;
      tiles.push_back({batch, group, i, height, j, width, tile_cost});
    }
  }
}

void SortByCost(std::vector<Tile>& tiles) {
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
}

}  // namespace moeprof
