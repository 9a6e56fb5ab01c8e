// Question: how is one grouped product put on a stream, whichever kernel it goes to?
#pragma once

#include <cstdint>
#include <string>

#include "gpu/grouped_gemm/group_lengths.h"
#include "gpu/grouped_gemm/lengths_report.h"
#include "gpu/runtime/element_type.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

// Which kernel, where the caller wants to say; zeros leave it to the shape.
struct GemmChoice {
  int32_t tile_cols = 0;  // 64 (plain multiply-adds), 128 or 256
  int32_t pairs = 0;      // 1 without, 2 with clusters of two blocks
  int32_t max_blocks = 0;
};

// out[i, :] = a[i, :] @ b[g(i)]: a [rows, k], b [groups, k, n], or [groups, n, k] where trans_b,
// out [rows, n]; rows past the sum of the lengths come out as zeros.
struct GpuGroupedGemm {
  ElementType type;
  const void* a;
  const void* b;
  void* out;
  GroupLengths lengths;
  int64_t rows, k, n;
  bool trans_b;
};

// out[g] = lhs_g^T rhs_g: lhs [rows, m], rhs [rows, n], out [groups, m, n], of float32 where
// float_out.
struct GpuVariableKGemm {
  ElementType type;
  const void* lhs;
  const void* rhs;
  void* out;
  GroupLengths lengths;
  int64_t rows, m, n;
  bool float_out;
};

// Bytes of scratch memory, aligned to 128, that one product needs.
size_t GroupedGemmScratchBytes(int64_t groups);

// Launch on `stream`; both return a complaint, or "".
std::string LaunchGroupedGemm(gpuStream_t stream, const GpuGroupedGemm& op, void* scratch,
                              const LengthsReport& report, const GemmChoice& choice);
std::string LaunchVariableKGemm(gpuStream_t stream, const GpuVariableKGemm& op, void* scratch,
                                const LengthsReport& report, const GemmChoice& choice);

}  // namespace moeprof::gpu
