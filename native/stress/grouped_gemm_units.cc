// Question: do the units of a group cover each of its tiles exactly once, in pairs that fit?
//
// Tries every number of rows up to kRows beside several widths. Prints what is wrong, or "ok" and
// how many tiles were seen.
#include <cstdio>
#include <set>
#include <utility>

#include "gpu/grouped_gemm/work_units.h"

namespace {

using moeprof::gpu::CeilDiv;
using moeprof::gpu::kHalfRows;
using moeprof::gpu::kTileRows;
using moeprof::gpu::PlaceOf;
using moeprof::gpu::TilePlace;
using moeprof::gpu::Tiling;
using moeprof::gpu::UnitsOf;

constexpr int32_t kRows = 4700;  // more than two bands of pairs of rows

// Halves of 64 rows of the tile that begins at `row`: one or two.
int32_t HalvesFrom(int32_t row, int32_t rows) {
  const int32_t halves = CeilDiv(rows - row, kHalfRows);
  return halves < 2 ? halves : 2;
}

const char* ComplaintAboutPair(const Tiling& tiling, int32_t rows, const TilePlace& first,
                               const TilePlace& second) {
  if (first.pair_shares_cols != second.pair_shares_cols) return "the blocks disagree";
  if (first.pair_shares_cols) {
    if (second.row != first.row + kTileRows || second.col != first.col) {
      return "not one tile above the other";
    }
    if (HalvesFrom(first.row, rows) != 2 || HalvesFrom(second.row, rows) != 2) {
      return "a pair of rows with an empty half";
    }
    return nullptr;
  }
  if (second.row != first.row || second.col != first.col + tiling.tile_cols) {
    return "not one tile beside the other";
  }
  return nullptr;
}

// nullptr where the units of one group are as they should be; counts its tiles.
const char* Complaint(const Tiling& tiling, int32_t rows, int64_t& tiles) {
  std::set<std::pair<int32_t, int32_t>> seen;
  const int32_t units = UnitsOf(tiling, rows);
  for (int32_t unit = 0; unit < units; ++unit) {
    const TilePlace first = PlaceOf(tiling, rows, unit, 0);
    if (first.row < 0 || first.row >= rows || first.row % tiling.tile_rows != 0 || first.col < 0 ||
        first.col >= tiling.cols || first.col % tiling.tile_cols != 0) {
      return "a first tile outside the group";
    }
    if (!seen.insert({first.row, first.col}).second) return "a tile twice";
    if (!tiling.pairs) continue;
    const TilePlace second = PlaceOf(tiling, rows, unit, 1);
    if (const char* complaint = ComplaintAboutPair(tiling, rows, first, second)) return complaint;
    if (second.col >= tiling.cols) continue;  // the idle partner of an odd last column
    if (second.row >= rows) return "a second tile outside the group";
    if (!seen.insert({second.row, second.col}).second) return "a tile twice";
  }
  const int64_t expected =
      int64_t{CeilDiv(rows, tiling.tile_rows)} * CeilDiv(tiling.cols, tiling.tile_cols);
  tiles += expected;
  return static_cast<int64_t>(seen.size()) == expected ? nullptr : "a tile left out";
}

}  // namespace

int main() {
  int64_t tiles = 0;
  for (const bool pairs : {false, true}) {
    for (const int32_t cols : {8, 256, 264, 512, 776, 1024, 1800}) {
      for (int32_t rows = 0; rows <= kRows; rows += rows < 1200 ? 1 : 13) {
        if (const char* complaint = Complaint({kTileRows, 256, cols, pairs}, rows, tiles)) {
          std::printf("%s: %d rows, %d columns, pairs %d\n", complaint, rows, cols, pairs);
          return 1;
        }
      }
    }
  }
  std::printf("ok %lld\n", static_cast<long long>(tiles));
  return 0;
}
