// Question: into which pieces is each group's product cut, so that all threads finish together?
#pragma once

#include <cstdint>
#include <vector>

namespace moeprof {

// Rows [row0, row0 + rows) and columns [col0, col0 + cols) of one group's output.
struct Tile {
  int64_t batch, group, row0, rows, col0, cols;
  double cost;  // multiply-adds, or stored elements where there is nothing to multiply
};

struct TileLimits {
  int64_t max_rows, max_cols;  // what the kernel takes at once
};

// Cuts an output of rows x cols whose product is `depth` deep and appends its tiles. Pieces cost
// about `grain`, are cut along columns first (each column piece of the weights is read by one
// thread only) and never become so thin that packing them costs more than multiplying.
void CutIntoTiles(int64_t batch, int64_t group, int64_t rows, int64_t cols, int64_t depth,
                  double grain, const TileLimits& limits, std::vector<Tile>& tiles);

// Dear tiles first: what is left at the end is small, so threads finish close together.
void SortByCost(std::vector<Tile>& tiles);

// The cost of a piece that leaves every thread several of them.
double Grain(double total_cost, int64_t workers);

}  // namespace moeprof
