// Question: how do thread blocks of a Hopper GPU compute the tiles of a grouped GEMM?
//
// out[i, :] = a[i, :] @ b[g(i)] (forward and dA), or out[g] = lhs_g^T rhs_g (dB, variable K). Both
// are tiles of 128 x kTileCols over the output of each group (work_units.h), of any depth:
//
//     producer warp ---TMA---> ring of stages, 64 deep: A 128 x 64, B 64 x kTileCols
//                              |  full[s]: the bytes are there      ^
//                              v                                    |  empty[s]: both blocks have
//     consumer warpgroup 0: rows 0..63      wgmma, float32          |  done with the stage
//     consumer warpgroup 1: rows 64..127    accumulators  ----------+
//                              |
//                              v stmatrix -> staging -> TMA, or 16-byte stores where the group ends
//                             out
//
// The parts: tile_work.h (which unit is next), tile_load.h, tile_multiply.h and tile_store.h.
//
// Blocks are persistent: one per multiprocessor, unit after unit, and the loads of the next tile
// run under the stores of the last. In a cluster of two each block loads one half of the operand
// that the pair shares and multicasts it: per 1024 cycles 128 x 256 x 64 needs 48 KiB of L2 alone,
// 32 KiB in a pair of rows and 40 KiB in a pair of columns.
//
// Arithmetic of one unit of depth k: 2 * 128 * kTileCols * k flops per tile, at 4096 flops a cycle
// 1024 cycles per stage of 256 columns. Registers: 64 x 256 float32 accumulators are 128 per
// thread; 56 for the producer's warpgroup and 224 for the consumers sum to 64512 of 65536.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/grouped_gemm/fill_unused.h"
#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/tile_args.h"
#include "gpu/grouped_gemm/tile_config.h"
#include "gpu/grouped_gemm/tile_load.h"
#include "gpu/grouped_gemm/tile_multiply.h"
#include "gpu/grouped_gemm/tile_store.h"
#include "gpu/grouped_gemm/tile_work.h"

namespace moeprof::gpu {

// The producer warp: lane 0 loads, draws and sends, all lanes decode the next unit.
template <typename Config>
__device__ __forceinline__ void Produce(const TileKernelArgs& args, const SharedLayout<Config>& at,
                                        int32_t first_unit, int32_t step, int32_t rank) {
  const int32_t units = args.plan.header->units;
  const bool leader = threadIdx.x % 32 == 0;
  const bool draws = leader && rank == 0;
  Ring<Config::kStages> ring;
  Ring<kWorkSlots> slots;  // of this unit's work and of the next one's number
  int32_t group = 0, acquired = -1;
  int32_t unit = first_unit;
  while (unit < units) {
    int32_t drawn = 0;
    if (draws) drawn = step + atomicAdd(&args.plan.header->next_unit, 1);
    const TileWork work = WorkOf<Config>(args, unit, rank, group);
    PublishWork(at, slots, work);
    group = work.group;
    if (Config::kVariableK && group != acquired) {
      MapAcquire(&args.group_maps[2 * group]);
      MapAcquire(&args.group_maps[2 * group + 1]);
      acquired = group;
    }
    // The number is sent when it has come back from memory, yet early enough to be there when the
    // last load has been issued.
    const int32_t send_at = work.depth_steps - Config::kStages;
#pragma unroll 1
    for (int32_t i = 0; i < work.depth_steps; ++i) {
      if (draws && i == send_at) SendUnit(at, slots, drawn);
      if (leader) {
        BarrierWait(at.Empty(ring.stage), ring.parity ^ 1);
        BarrierArriveExpect(at.Full(ring.stage), Config::kStageBytes);
        LoadStage<Config>(args, work, at, ring.stage, i * kTileDepth, rank);
      }
      ring.Advance();
    }
    if (draws && send_at < 0) SendUnit(at, slots, drawn);
    __syncwarp();
    unit = TakeUnit(at, slots, drawn);
    slots.Advance();
  }
  PublishWork(at, slots, {-1, 0, 0, 0, 0, 0, false});
}

template <typename Config>
__device__ __forceinline__ void Consume(const TileKernelArgs& args, const SharedLayout<Config>& at,
                                        int32_t consumer) {
  Ring<Config::kStages> ring;
  Ring<kWorkSlots> works;
  uint32_t turn = 0;
  float acc[Config::kTileCols / 2];
  for (TileWork work = TakeWork(at, works); work.group >= 0; work = TakeWork(at, works)) {
    if (work.col >= args.tiling.cols || work.row + consumer * kHalfRows >= work.rows) {
      Pass(at, ring, work.depth_steps);
      continue;
    }
    Multiply(acc, at, ring, work.depth_steps, consumer);
    if constexpr (sizeof(typename Config::Out) == 4) {
      StoreFloats<Config>(args, work, acc, consumer);
    } else {
      StoreSlab(args, work, acc, at, consumer, turn);
    }
  }
  if (threadIdx.x % 128 == 0) StoreWaitRead<0>();
}

// The warps of the producer's warpgroup that load nothing write what no tile covers.
template <typename Config>
__device__ __forceinline__ void Fill(const TileKernelArgs& args) {
  const PlanHeader header = *args.plan.header;
  const int64_t row_bytes = int64_t{args.tiling.cols} * sizeof(typename Config::Out);
  const int64_t rows = Config::kVariableK ? int64_t{args.groups} * args.m : args.rows;
  const int64_t first = header.broken ? 0 : Config::kVariableK ? rows : header.rows_used;
  FillUnused<uint4>(args.out_data, first * row_bytes, rows * row_bytes, header.broken != 0,
                    int64_t{blockIdx.x} * 96 + threadIdx.x - 32, int64_t{gridDim.x} * 96);
}

template <typename Config>
__global__ void __launch_bounds__(kTileThreads, 1)
    GroupedGemmTiles(const __grid_constant__ TileKernelArgs args) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const SharedLayout<Config> at{SharedAddress(shared)};
  const int warpgroup = threadIdx.x / 128;
  const int32_t rank = Config::kPairs ? static_cast<int32_t>(RankInCluster()) : 0;
  const int32_t first_unit = static_cast<int32_t>(blockIdx.x) / Config::kBlocks;
  const int32_t step = static_cast<int32_t>(gridDim.x) / Config::kBlocks;

  if (threadIdx.x == 0) {
    if (at.base % 1024 != 0) __trap();  // swizzling counts on it
    for (int i = 0; i < Config::kStages; ++i) {
      BarrierInit(at.Full(i), 1);
      BarrierInit(at.Empty(i), 8 * Config::kBlocks);  // warps of the consumers of every block
    }
    for (int i = 0; i < kWorkSlots; ++i) {
      BarrierInit(at.WorkFull(i), 1);
      BarrierInit(at.WorkEmpty(i), 8);
      BarrierInit(at.UnitFull(i), 1);
      BarrierInit(at.UnitEmpty(i), Config::kBlocks);
      BarrierArriveExpect(at.UnitFull(i), 4);
    }
    BarrierInitFence();
    PrefetchMap(&args.out);
    if (!Config::kVariableK) {
      PrefetchMap(&args.a);
      PrefetchMap(&args.b);
    }
  }
  if (Config::kPairs) {
    ClusterSync();
  } else {
    __syncthreads();
  }

  if (warpgroup == 0) {
    ReleaseRegisters<56>();
    if (threadIdx.x < 32) {
      Produce(args, at, first_unit, step, rank);
    } else {
      Fill<Config>(args);
    }
  } else {
    ClaimRegisters<224>();
    Consume(args, at, warpgroup - 1);
  }

  // A block stays until its partner sends it nothing more.
  if (Config::kPairs) {
    __syncwarp();
    ClusterSync();
  }
}

}  // namespace moeprof::gpu
