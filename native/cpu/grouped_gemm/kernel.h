// Question: what does one tile of the grouped GEMM compute?
//
// out[i, :] = a[i, :] @ b[g(i)]  where rows are sorted by group g (one group per expert).
//
//            k                       n                            n
//      +-----------+          +-----------+                +---------+---+
//  g=0 |  a rows   | len[0]   |  b[0]     | k           g=0|  tile   |...|  -> thread 1
//      +-----------+          +-----------+                +---------+---+
//  g=1 |           | len[1]   |  b[1]     | k           g=1|         |   |  -> thread 0
//      |           |          +-----------+                |         |   |
//      +-----------+          |  ...      |                +---------+---+
//      |  ...      |          +-----------+                |   ...       |
//      +-----------+  <- sum(len)  b[G-1]  |               +-------------+
//      |  unread   |          +-----------+                |   zeros     |
//      +-----------+  M                                    +-------------+
//
// Every operand has a batch axis in front; one of size 1 is shared by all batch elements, so that
// vmap over the tokens alone never copies the weights.
//   a    [Ba, M, k], or [Ba, k, M] where trans_a       b  [Bb, G, k, n], or [Bb, G, n, k] (trans_b)
//   out  [B, M, n]
//
// Who computes what: a tile is a rectangle of one group's output rows. It is one dense product
// (gemm_tile.h) of depth k. Tiles write disjoint memory and share nothing, so any thread may take
// any tile in any order. Rows past sum(len) are never read and are written as zeros.
//
// Limit: 2 sum(len) k n flops against (sum(len) (k + n) + G k n) elements of traffic. With m rows
// in a group the weights are read once for 2 m flops each; a core that multiplies at 100 GFLOP/s
// and reads 10 GB/s is bound by arithmetic from m = 20 float32 rows on. Below that, and where the
// output is fresh memory, bandwidth decides. Packing inside the BLAS costs about k n moves per
// group besides, which is why a group is not cut into many row tiles.
//
// Indices are 64-bit throughout; one side of one product is at most INT_MAX (the BLAS takes int).
#pragma once

#include <cstdint>

#include "cpu/products/group_offsets.h"
#include "cpu/products/tile_plan.h"

namespace moeprof {

template <typename T>
struct GroupedGemm {
  const T* a;
  const T* b;
  T* out;
  int64_t a_batch, b_batch, batch;  // a_batch and b_batch are 1 or `batch`
  int64_t rows, k, n, groups;
  bool trans_a, trans_b;
};

template <typename T>
void ComputeTile(const GroupedGemm<T>& op, const GroupOffsets& offsets, const Tile& tile);

// Writes zeros to rows [row0, row0 + rows) of one batch element's output.
template <typename T>
void ZeroRows(const GroupedGemm<T>& op, int64_t batch, int64_t row0, int64_t rows);

}  // namespace moeprof
