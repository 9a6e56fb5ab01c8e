// Question: into which pieces of work is the output of one group cut, and in which order are they
// done?
//
// The output of a group, rows x columns, is cut into tiles of kTileRows x tile_cols. A unit is one
// tile, or, where blocks work in clusters of two, a pair of tiles:
//
//   pairs of rows      two tiles above each other share their columns, so each block loads half of
//                      the B tile and sends it to both
//   pairs of columns   two tiles beside each other share their rows, so each block loads half of
//                      the A tile and sends it to both; with an odd number of tile columns the
//                      last unit has one tile only, and the other block computes nothing
//
// A tile has two halves of 64 rows, one for each consumer warpgroup; a half past the end of the
// group costs no arithmetic. Two tiles of a pair wait for each other, so a tile with one half is
// never paired with a whole one: whole tiles are paired by rows, and what is left, at most one
// whole tile row and one half, by columns.
//
// Order inside a group: bands of kBandRows units by all columns, rows fastest, so that the blocks
// that run at one time share tiles of A and of B in L2. The rows that pairs of rows leave over come
// with the last band, after every two of its columns: done after the band they would read these
// columns of B once more.
#pragma once

#include <cstdint>

#include "gpu/runtime/host_and_device.h"

namespace moeprof::gpu {

constexpr int32_t kTileRows = 128;
constexpr int32_t kHalfRows = 64;
constexpr int32_t kBandRows = 8;

struct Tiling {
  int32_t tile_rows;  // kTileRows, or any size where units are single tiles
  int32_t tile_cols;
  int32_t cols;  // of the output
  bool pairs;
};

MOEPROF_BOTH int32_t CeilDiv(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Number of units of a group whose output has `rows` rows.
MOEPROF_BOTH int32_t UnitsOf(const Tiling& tiling, int32_t rows) {
  const int32_t tile_cols = CeilDiv(tiling.cols, tiling.tile_cols);
  if (!tiling.pairs) return CeilDiv(rows, tiling.tile_rows) * tile_cols;
  const int32_t halves = CeilDiv(rows, kHalfRows);
  const int32_t whole = halves / 2;
  const int32_t singles = whole % 2 + halves % 2;
  return whole / 2 * tile_cols + singles * CeilDiv(tile_cols, 2);
}

struct TilePlace {
  int32_t row, col;       // of the tile's first element in the group's output
  bool pair_shares_cols;  // the unit is a pair of rows
};

// Row and column of unit number `unit` among `rows` by `cols` units.
MOEPROF_BOTH void PlaceInBands(int32_t unit, int32_t rows, int32_t cols, int32_t& row,
                               int32_t& col) {
  const int32_t band = unit / (kBandRows * cols);
  const int32_t in_band = unit % (kBandRows * cols);
  const int32_t left = rows - band * kBandRows;
  const int32_t band_rows = left < kBandRows ? left : kBandRows;
  col = in_band / band_rows;
  row = band * kBandRows + in_band % band_rows;
}

// The tile that block `rank` (0 or 1; 0 without pairs) of unit `unit` of a group computes; its
// column may lie past the last one.
MOEPROF_BOTH TilePlace PlaceOf(const Tiling& tiling, int32_t rows, int32_t unit, int32_t rank) {
  const int32_t tile_cols = CeilDiv(tiling.cols, tiling.tile_cols);
  if (!tiling.pairs) {
    int32_t row, col;
    PlaceInBands(unit, CeilDiv(rows, tiling.tile_rows), tile_cols, row, col);
    return {row * tiling.tile_rows, col * tiling.tile_cols, false};
  }
  const int32_t halves = CeilDiv(rows, kHalfRows);
  const int32_t row_pairs = halves / 4;
  const int32_t singles = halves / 2 % 2 + halves % 2;  // rows of tiles that are paired by columns
  const int32_t last_band = row_pairs > 0 ? (row_pairs - 1) / kBandRows : 0;
  const int32_t of_band = kBandRows * tile_cols;
  const int32_t band = unit / of_band < last_band ? unit / of_band : last_band;
  const int32_t in_band = unit - band * of_band;
  if (band < last_band) {
    const int32_t row_pair = band * kBandRows + in_band % kBandRows;
    const int32_t col = in_band / kBandRows;
    return {(2 * row_pair + rank) * kTileRows, col * tiling.tile_cols, true};
  }
  // Two columns of the last band's pairs of rows, or the one that is left, then the singles there.
  const int32_t left = row_pairs - band * kBandRows;
  const int32_t col_pair = in_band / (2 * left + singles);
  const int32_t in_cols = in_band - col_pair * (2 * left + singles);
  const int32_t of_pairs = (tile_cols - 2 * col_pair >= 2 ? 2 : 1) * left;
  if (in_cols < of_pairs) {
    const int32_t row_pair = band * kBandRows + in_cols % left;
    const int32_t col = 2 * col_pair + in_cols / left;
    return {(2 * row_pair + rank) * kTileRows, col * tiling.tile_cols, true};
  }
  const int32_t row = 2 * row_pairs + in_cols - of_pairs;
  return {row * kTileRows, (2 * col_pair + rank) * tiling.tile_cols, false};
}

}  // namespace moeprof::gpu
