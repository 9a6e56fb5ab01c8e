// Question: which part of which unit does a block of a tile kernel compute next?
//
// A cluster begins with the unit of its own number; every further one is drawn from a counter in
// the plan, so that a cluster whose units were short, or that got its multiprocessors late, draws
// more or fewer of them, and units that are neighbours in the order run at about the same time and
// share their operands in L2. One thread per cluster draws, and sends the number to the producers
// of its blocks; the last number that a cluster draws is past the end, and both blocks stop there.
//
//     producer of block 0: draw --Unit[slot]--> producers of both blocks: WorkOf
//                                               --Work[slot]--> the 8 consumer warps of the block
//
// Slots are taken in turn, one per unit for its work and for the number after it. A producer that
// has read a number arms UnitFull for the next one in that slot before it tells block 0's
// UnitEmpty, so no number overwrites one unread or rings for a phase that has not begun. Lane 0 of
// a warp alone waits for a slot, reads it and gives it back, and passes on what it read by
// shuffles: so the order of reads and writes is one of barriers between threads that use both.
#pragma once

#include <cstdint>

#include "gpu/grouped_gemm/group_of_unit.h"
#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/tile_args.h"
#include "gpu/grouped_gemm/tile_config.h"
#include "gpu/grouped_gemm/work_units.h"

namespace moeprof::gpu {

// One block's part of a unit. What the consumers need of it passes through shared memory.
struct TileWork {
  int32_t group;        // -1: there is no more work
  int32_t row, col;     // of the tile's first element in the group's output
  int32_t rows;         // of the group's output
  int32_t first_row;    // of the group in the ragged operand
  int32_t depth_steps;  // stages
  bool pair_shares_cols;
};

template <typename Config>
__device__ __forceinline__ TileWork WorkOf(const TileKernelArgs& args, int32_t unit, int32_t rank,
                                           int32_t from_group) {
  TileWork work;
  work.group = GroupOfUnit(args.plan.unit_offsets, args.groups, unit, from_group);
  work.first_row = args.plan.row_offsets[work.group];
  const int32_t length = args.plan.row_offsets[work.group + 1] - work.first_row;
  work.rows = Config::kVariableK ? args.m : length;
  work.depth_steps = CeilDiv(Config::kVariableK ? length : args.depth, kTileDepth);
  Tiling tiling = args.tiling;
  tiling.tile_rows = kTileRows;
  tiling.tile_cols = Config::kTileCols;
  tiling.pairs = Config::kPairs;
  const TilePlace place =
      PlaceOf(tiling, work.rows, unit - args.plan.unit_offsets[work.group], rank);
  work.row = place.row;
  work.col = place.col;
  work.pair_shares_cols = place.pair_shares_cols;
  return work;
}

// Lane 0's value, for all lanes.
__device__ __forceinline__ int32_t OfLeader(int32_t value) { return __shfl_sync(~0u, value, 0); }

// Hands `work` to the consumers of this block.
template <typename Config>
__device__ __forceinline__ void PublishWork(const SharedLayout<Config>& at,
                                            const Ring<kWorkSlots>& ring, const TileWork& work) {
  if (threadIdx.x % 32 == 0) {
    BarrierWait(at.WorkEmpty(ring.stage), ring.parity ^ 1);
    StoreShared4(at.Work(ring.stage), {work.group, work.row, work.col, work.rows});
    StoreShared4(at.Work(ring.stage) + 16, {work.first_row, work.depth_steps, 0, 0});
    BarrierArrive(at.WorkFull(ring.stage));
  }
}

// What the producer published next; a whole warp takes it.
template <typename Config>
__device__ __forceinline__ TileWork TakeWork(const SharedLayout<Config>& at,
                                             Ring<kWorkSlots>& ring) {
  int4 first{}, second{};
  if (threadIdx.x % 32 == 0) {
    BarrierWait(at.WorkFull(ring.stage), ring.parity);
    first = LoadShared4(at.Work(ring.stage));
    second = LoadShared4(at.Work(ring.stage) + 16);
    BarrierArrive(at.WorkEmpty(ring.stage));
  }
  ring.Advance();
  return {OfLeader(first.x),
          OfLeader(first.y),
          OfLeader(first.z),
          OfLeader(first.w),
          OfLeader(second.x),
          OfLeader(second.y),
          false};
}

// The producers of a cluster learn which unit is next; `drawn` is what lane 0 of block 0 drew.
template <typename Config>
__device__ __forceinline__ int32_t TakeUnit(const SharedLayout<Config>& at,
                                            const Ring<kWorkSlots>& ring, int32_t drawn) {
  if (Config::kBlocks > 1 && threadIdx.x % 32 == 0) {
    BarrierWait(at.UnitFull(ring.stage), ring.parity);
    drawn = static_cast<int32_t>(LoadShared(at.Unit(ring.stage)));
    BarrierArriveExpect(at.UnitFull(ring.stage), 4);  // for the next number in this slot
    BarrierArriveAt(at.UnitEmpty(ring.stage), 0);
  }
  return OfLeader(drawn);
}

// Block 0 of a cluster: one thread sends a number to the producers of all blocks. A block alone
// keeps it.
template <typename Config>
__device__ __forceinline__ void SendUnit(const SharedLayout<Config>& at,
                                         const Ring<kWorkSlots>& ring, int32_t unit) {
  if (Config::kBlocks == 1) return;
  BarrierWait(at.UnitEmpty(ring.stage), ring.parity ^ 1);
  for (int rank = 0; rank < Config::kBlocks; ++rank) {
    SendWord(at.Unit(ring.stage), at.UnitFull(ring.stage), rank, unit);
  }
}

}  // namespace moeprof::gpu
