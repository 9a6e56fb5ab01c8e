// Question: which kernel runs a grouped GEMM that the tensor cores' kernel cannot take?
//
// float32 operands, and sides that are no multiple of 8 (TMA wants rows of whole 16 bytes), go to
// plain multiply-adds: tiles of 64 x 64 by 256 threads, float32 sums in the order of the depth. It
// is the slow path and the second opinion of the tests.
#pragma once

#include <cstdint>

#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/work_units.h"
#include "gpu/runtime/element_type.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

constexpr int32_t kSimtTile = 64;

// Element (row i, depth d) of A of a group whose first row is r is at r * a_first + i * a_row +
// d * a_depth; element (d, column j) of B of group g at g * b_group + r * b_first + d * b_depth +
// j * b_col.
struct SimtArgs {
  const void* a;
  const void* b;
  void* out;
  Plan plan;
  Tiling tiling;
  int32_t groups;
  int64_t rows;     // of the ragged operand
  bool variable_k;  // groups cut the depth
  int32_t depth;    // k; variable K: unused
  int32_t m;        // variable K: rows of each group's output
  int64_t a_first, a_row, a_depth;
  int64_t b_group, b_first, b_depth, b_col;
};

gpuError_t LaunchSimt(gpuStream_t stream, int32_t blocks, ElementType type, bool float_out,
                      const SimtArgs& args);

}  // namespace moeprof::gpu
