// Question: what does one tile of the variable-K grouped GEMM (the weight gradient) compute?
//
// out[g] = lhs[rows of g]^T @ rhs[rows of g]: the depth of each product is the group's length.
//
//             m                     n                         n
//      +-----------+         +-----------+             +-----------+
//  g=0 | lhs rows  | len[0]  | rhs rows  |          m  |  out[0]   |   len[0] deep
//      +-----------+         +-----------+             +-----------+
//  g=1 |           | len[1]  |           |          m  |  out[1]   |   len[1] deep
//      +-----------+         +-----------+             +-----------+
//  g=2 |  (empty)    len[2] = 0          |          m  |  zeros    |   nothing to add
//      +-----------+         +-----------+             +-----------+
//      |  unread   |         |  unread   |             |  ...      |
//      +-----------+  rows   +-----------+             +-----------+
//
//   lhs [Bl, rows, m]    rhs [Br, rows, n]    out [B, G, m, n]    (Bl and Br are 1 or B)
//
// Who computes what: a tile is a rectangle of one out[g], one dense product (gemm_tile.h) with lhs
// read transposed. Tiles write disjoint memory; an empty group's tiles are written as zeros, bit
// for bit, and rows past sum(len) are never read.
//
// Limit: 2 sum(len) m n flops, but G m n elements are written whatever the lengths are. With few
// rows per group the store decides: at 10 GB/s a float32 element takes 0.4 ns, the time of 40
// flops at 100 GFLOP/s, so a group of fewer than 20 rows is bound by writing its gradient.
#pragma once

#include <cstdint>

#include "cpu/products/group_offsets.h"
#include "cpu/products/tile_plan.h"

namespace moeprof {

// `Out` is T, or float for sums that are not rounded to 16 bits.
template <typename T, typename Out = T>
struct VariableKGemm {
  const T* lhs;
  const T* rhs;
  Out* out;
  int64_t lhs_batch, rhs_batch, batch;  // lhs_batch and rhs_batch are 1 or `batch`
  int64_t rows, m, n, groups;
};

template <typename T, typename Out>
void ComputeTile(const VariableKGemm<T, Out>& op, const GroupOffsets& offsets, const Tile& tile);

}  // namespace moeprof
