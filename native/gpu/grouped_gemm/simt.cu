#include "gpu/grouped_gemm/fill_unused.h"
#include "gpu/grouped_gemm/group_of_unit.h"
#include "gpu/grouped_gemm/simt.h"
#include "gpu/runtime/half_types.h"

namespace moeprof::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kDepth = 16;
constexpr int kPerThread = 4;  // a square of 4 x 4 results

template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) GroupedGemmSimt(SimtArgs args) {
  __shared__ float tile_a[kDepth][kSimtTile + 1];
  __shared__ float tile_b[kDepth][kSimtTile + 1];
  const auto* const a = static_cast<const T*>(args.a);
  const auto* const b = static_cast<const T*>(args.b);
  auto* const out = static_cast<Out*>(args.out);
  const int32_t cols = args.tiling.cols;
  const int thread = threadIdx.x;
  const int thread_row = thread / 16 * kPerThread, thread_col = thread % 16 * kPerThread;
  const PlanHeader header = *args.plan.header;

  const int64_t out_rows = args.variable_k ? int64_t{args.groups} * args.m : args.rows;
  const int64_t fill_from = header.broken ? 0 : args.variable_k ? out_rows : header.rows_used;
  const int64_t row_bytes = int64_t{cols} * static_cast<int64_t>(sizeof(Out));
  if constexpr (sizeof(Out) == 4) {
    FillUnused<uint32_t>(out, fill_from * row_bytes, out_rows * row_bytes, header.broken != 0,
                         int64_t{blockIdx.x} * kThreads + thread, int64_t{gridDim.x} * kThreads);
  } else {
    FillUnused<uint16_t>(out, fill_from * row_bytes, out_rows * row_bytes, header.broken != 0,
                         int64_t{blockIdx.x} * kThreads + thread, int64_t{gridDim.x} * kThreads);
  }

  for (int32_t unit = blockIdx.x; unit < header.units; unit += gridDim.x) {
    const int32_t group = SearchGroup(args.plan.unit_offsets, args.groups, unit);
    const int64_t first_row = args.plan.row_offsets[group];
    const int32_t length = args.plan.row_offsets[group + 1] - static_cast<int32_t>(first_row);
    const int32_t rows = args.variable_k ? args.m : length;
    const int32_t depth = args.variable_k ? length : args.depth;
    const TilePlace place = PlaceOf(args.tiling, rows, unit - args.plan.unit_offsets[group], 0);
    const T* const group_a = a + first_row * args.a_first;
    const T* const group_b = b + group * args.b_group + first_row * args.b_first;

    float acc[kPerThread][kPerThread] = {};
    for (int32_t d0 = 0; d0 < depth; d0 += kDepth) {
      for (int i = thread; i < kDepth * kSimtTile; i += kThreads) {
        // Neighbouring threads read neighbouring memory, whichever axis that is.
        const int a_d = args.a_depth == 1 ? i % kDepth : i / kSimtTile;
        const int a_r = args.a_depth == 1 ? i / kDepth : i % kSimtTile;
        const bool in_a = d0 + a_d < depth && place.row + a_r < rows;
        tile_a[a_d][a_r] =
            in_a ? ToFloat(group_a[(place.row + a_r) * args.a_row + (d0 + a_d) * args.a_depth])
                 : 0.0f;
        const int b_d = args.b_depth == 1 ? i % kDepth : i / kSimtTile;
        const int b_c = args.b_depth == 1 ? i / kDepth : i % kSimtTile;
        const bool in_b = d0 + b_d < depth && place.col + b_c < cols;
        tile_b[b_d][b_c] =
            in_b ? ToFloat(group_b[(d0 + b_d) * args.b_depth + (place.col + b_c) * args.b_col])
                 : 0.0f;
      }
      __syncthreads();
      for (int d = 0; d < kDepth; ++d) {
        for (int i = 0; i < kPerThread; ++i) {
          for (int j = 0; j < kPerThread; ++j) {
            acc[i][j] = fmaf(tile_a[d][thread_row + i], tile_b[d][thread_col + j], acc[i][j]);
          }
        }
      }
      __syncthreads();
    }

    const int64_t out_row = args.variable_k ? int64_t{group} * args.m : first_row;
    for (int i = 0; i < kPerThread; ++i) {
      const int32_t row = place.row + thread_row + i;
      for (int j = 0; j < kPerThread; ++j) {
        const int32_t col = place.col + thread_col + j;
        if (row < rows && col < cols) out[(out_row + row) * cols + col] = FromFloat<Out>(acc[i][j]);
      }
    }
  }
}

template <typename T, typename Out>
gpuError_t Launch(gpuStream_t stream, int32_t blocks, const SimtArgs& args) {
  GroupedGemmSimt<T, Out><<<blocks, kThreads, 0, stream>>>(args);
  return gpuGetLastError();
}

}  // namespace

gpuError_t LaunchSimt(gpuStream_t stream, int32_t blocks, ElementType type, bool float_out,
                      const SimtArgs& args) {
  switch (type) {
    case ElementType::kFloat32:
      return Launch<float, float>(stream, blocks, args);
    case ElementType::kBFloat16:
      return float_out ? Launch<bfloat16_t, float>(stream, blocks, args)
                       : Launch<bfloat16_t, bfloat16_t>(stream, blocks, args);
    case ElementType::kFloat16:
      return float_out ? Launch<float16_t, float>(stream, blocks, args)
                       : Launch<float16_t, float16_t>(stream, blocks, args);
  }
  return gpuErrorInvalidValue;
}

}  // namespace moeprof::gpu
