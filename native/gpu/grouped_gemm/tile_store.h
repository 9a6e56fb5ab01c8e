// Question: how do the results of a tile get from a consumer's registers to the output?
//
// 16-bit results go through staging chunks of 64 x 64 values to TMA, which writes whole boxes:
// where a group ends within one, threads write its rows by 16 bytes instead, as the rows behind
// belong to the next group. float32 results are written from the registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/tile_args.h"
#include "gpu/grouped_gemm/tile_config.h"
#include "gpu/grouped_gemm/tile_work.h"

namespace moeprof::gpu {

__device__ __forceinline__ uint32_t Pack(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t Pack(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Writes the 64 rows of one consumer, as many as the group has, 64 columns at a time through two
// staging buffers in turn: `turn` counts them over the kernel's life.
template <typename Config>
__device__ __forceinline__ void StoreSlab(const TileKernelArgs& args, const TileWork& work,
                                          const float (&acc)[Config::kTileCols / 2],
                                          const SharedLayout<Config>& at, int32_t consumer,
                                          uint32_t& turn) {
  using T = typename Config::T;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const int32_t row = work.row + consumer * kHalfRows;
  const int32_t rows_left = work.rows - row;
  const bool whole = Config::kVariableK || rows_left >= kHalfRows;
  const int matrix_row = warp * 16 + lane % 16;  // row of the slab that this lane addresses
#pragma unroll
  for (int chunk = 0; chunk < Config::kChunksB; ++chunk) {
    const int32_t col = work.col + 64 * chunk;
    if (col >= args.tiling.cols) continue;
    const uint32_t buffer = at.Staging(consumer) + (turn & 1) * kChunkBytes;
    ++turn;
    if (thread == 0) StoreWaitRead<1>();
    NamedBarrier(1 + consumer, 128);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = acc + (chunk * 8 + j) * 4;
      const int unit = j + lane / 16;  // of 16 bytes in the row
      StoreMatrices(buffer + matrix_row * 128 + ((unit ^ (matrix_row % 8)) << 4),
                    Pack(v[0], v[1], T()), Pack(v[2], v[3], T()), Pack(v[4], v[5], T()),
                    Pack(v[6], v[7], T()));
    }
    FenceForTma();
    NamedBarrier(1 + consumer, 128);
    if (whole) {
      if (thread == 0) {
        if constexpr (Config::kVariableK) {
          StoreBox(&args.out, buffer, col, row, work.group);
        } else {
          StoreBox(&args.out, buffer, col, work.first_row + row);
        }
      }
    } else {
      const int unit = thread % 8;
      if (col + unit * 8 < args.tiling.cols) {
        for (int r = thread / 8; r < rows_left; r += 16) {
          const int4 value = LoadShared4(buffer + r * 128 + ((unit ^ (r % 8)) << 4));
          const int64_t index =
              int64_t{work.first_row + row + r} * args.tiling.cols + col + unit * 8;
          *reinterpret_cast<int4*>(static_cast<T*>(args.out_data) + index) = value;
        }
      }
    }
    if (thread == 0) StoreCommit();
  }
}

// float32 results go straight from the registers: 4 lanes write 32 bytes of a row.
template <typename Config>
__device__ __forceinline__ void StoreFloats(const TileKernelArgs& args, const TileWork& work,
                                            const float (&acc)[Config::kTileCols / 2],
                                            int32_t consumer) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const int32_t row = work.row + consumer * kHalfRows + warp * 16 + lane / 4;
  const int64_t first_row =
      Config::kVariableK ? int64_t{work.group} * args.m : int64_t{work.first_row};
  float* out = static_cast<float*>(args.out_data) + (first_row + row) * args.tiling.cols;
#pragma unroll
  for (int j = 0; j < Config::kTileCols / 8; ++j) {
    const int32_t col = work.col + 8 * j + 2 * (lane % 4);
    if (col >= args.tiling.cols) continue;
    if (row < work.rows) {
      *reinterpret_cast<float2*>(out + col) = make_float2(acc[4 * j], acc[4 * j + 1]);
    }
    if (row + 8 < work.rows) {
      *reinterpret_cast<float2*>(out + int64_t{8} * args.tiling.cols + col) =
          make_float2(acc[4 * j + 2], acc[4 * j + 3]);
    }
  }
}

}  // namespace moeprof::gpu
