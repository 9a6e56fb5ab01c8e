// Question: how is one dense product of bounded size computed for each element type?
//
// float32 goes straight to OpenBLAS. bfloat16 and float16 have no fast product on most CPUs
// (the OpenBLAS wheel exports no 16-bit one), so blocks of them are widened into
// scratch, multiplied in float32 and rounded once at the end:
//
//        depth ->                    cols                         cols
//      +----+----+              +------------+               +------------+
// rows | A0 | A1 | kChunkRows   | B0 (widened| kBlockDepth   |  C in      |
//      +----+----+              |  once/tile)|               |  float32   |
//      | .. | .. |              +------------+               | (rows x    |
//      +----+----+              | B1         |               |  cols)     |
//                               +------------+               +------------+
// for each depth block: widen B; for each row chunk: widen A, C += A B. Then C -> target type.
// Scratch of a thread: at most kBlockDepth * kMaxCols + kChunkRows * kBlockDepth
// + kMaxRows * kMaxCols floats = 5 MiB, kept by the thread for its next tile.
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/common/convert.h"

namespace moeprof {

// Of rows, columns or depth: the BLAS takes int.
constexpr int64_t kLongestSide = std::numeric_limits<int32_t>::max();

// A matrix operand: element (i, j) lies at data[i * stride + j], or at data[j * stride + i] where
// `transposed`.
template <typename T>
struct Operand {
  const T* data;
  int64_t stride;
  bool transposed;
};

// Largest tile of a 16-bit type; float32 tiles may have any size up to INT_MAX per side.
inline constexpr int64_t kMaxTileRows = 1024;
inline constexpr int64_t kMaxTileCols = 512;

// c[rows, cols] = a[rows, depth] b[depth, cols], accumulated in float32. Writes every element of
// c, zeros where depth is 0, and reads none. Throws std::bad_alloc for want of scratch. `Out` is T
// or float.
template <typename T, typename Out>
void GemmTile(const Operand<T>& a, const Operand<T>& b, Out* c, int64_t c_stride, int64_t rows,
              int64_t cols, int64_t depth);

}  // namespace moeprof
