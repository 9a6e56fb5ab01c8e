// Question: how do tests and measurements call the grouped GEMM without a framework?
//
// Part of the library itself: what is tested and measured is what runs.
#include <cstdio>
#include <string>

#include "gpu/grouped_gemm/launch.h"

namespace {

using moeprof::gpu::ElementType;
using moeprof::gpu::FaultSink;
using moeprof::gpu::GemmChoice;
using moeprof::gpu::GpuOp;
using moeprof::gpu::GroupLengths;

int Answer(const std::string& complaint, char* text, int size) {
  if (text != nullptr && size > 0) std::snprintf(text, size, "%s", complaint.c_str());
  return complaint.empty() ? 0 : 1;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t MoeprofGpuGroupedGemmScratchBytes(int64_t groups) {
  return moeprof::gpu::GroupedGemmScratchBytes(groups);
}

// type: 0 float32, 1 bfloat16, 2 float16. lens int32 or int64 [groups]; offs null, or of the type
// of lens [groups + 1]. faults: the FaultSink. Returns 0, or 1 and the complaint in `text`.
int MoeprofGpuGroupedGemmRaw(void* stream, int type, const void* a, const void* b, void* out,
                             const void* lens, const void* offs, int lens_are_int64, int64_t groups,
                             int64_t rows, int64_t k, int64_t n, int trans_b, void* scratch,
                             const void* faults, int tile_cols, int pairs, int max_blocks,
                             char* text, int size) {
  const GroupLengths lengths{lens, offs, lens_are_int64 != 0, lens_are_int64 != 0,
                             static_cast<int32_t>(groups)};
  return Answer(moeprof::gpu::LaunchGroupedGemm(
                    static_cast<moeprof::gpu::gpuStream_t>(stream),
                    {static_cast<ElementType>(type), a, b, out, lengths, rows, k, n, trans_b != 0},
                    scratch, {*static_cast<const FaultSink*>(faults), GpuOp::kGroupedGemm, -1},
                    GemmChoice{tile_cols, pairs, max_blocks}),
                text, size);
}

int MoeprofGpuVariableKGemmRaw(void* stream, int type, const void* lhs, const void* rhs, void* out,
                               const void* lens, const void* offs, int lens_are_int64,
                               int64_t groups, int64_t rows, int64_t m, int64_t n, int float_out,
                               void* scratch, const void* faults, int tile_cols, int pairs,
                               int max_blocks, char* text, int size) {
  const GroupLengths lengths{lens, offs, lens_are_int64 != 0, lens_are_int64 != 0,
                             static_cast<int32_t>(groups)};
  return Answer(
      moeprof::gpu::LaunchVariableKGemm(
          static_cast<moeprof::gpu::gpuStream_t>(stream),
          {static_cast<ElementType>(type), lhs, rhs, out, lengths, rows, m, n, float_out != 0},
          scratch, {*static_cast<const FaultSink*>(faults), GpuOp::kGroupedGemmVariableK, -1},
          GemmChoice{tile_cols, pairs, max_blocks}),
      text, size);
}

}  // extern "C"
#pragma GCC visibility pop
