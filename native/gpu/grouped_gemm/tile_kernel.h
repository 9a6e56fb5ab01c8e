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
// Blocks are persistent: one per multiprocessor, unit after unit, and the loads of the next tile
// run under the stores of the last. In a cluster of two each block loads one half of the operand
// that the pair shares and multicasts it: 128 x 256 x 64 needs 48 KiB per 1024 cycles and
// multiprocessor, 9 TB/s over a H100, where L2 gives 5.5 (measured by others); pairing takes it to
// 32 KiB (pairs of rows) and 40 KiB (pairs of columns).
//
// What may run over an edge and what keeps it right:
//   A rows past the group's end are read (they are the next group's, or zeros past the last row);
//   they reach only output rows that are not stored. Depth past k, columns past n: zeros, by TMA.
//   dB: rows past the group's end are zeros, because each group has its own tensor maps.
//
// Arithmetic of one unit of depth k: 2 * 128 * kTileCols * k flops per tile, at 4096 flops a cycle
// 1024 cycles per stage of 256 columns. Registers: 64 x 256 float32 accumulators are 128 per
// thread; 56 for the producer's warpgroup and 224 for the consumers sum to 64512 of 65536.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/plan.h"
#include "gpu/grouped_gemm/tile_args.h"
#include "gpu/grouped_gemm/wgmma.h"
#include "gpu/grouped_gemm/work_units.h"

namespace moeprof::gpu {

constexpr int kTileThreads = 384;
constexpr int kWorkSlots = 4;
constexpr int kTileDepth = 64;  // 128 bytes of 16-bit values: one swizzled row

template <typename T_, Major kMajorA_, Major kMajorB_, bool kVariableK_, int kTileCols_,
          bool kPairs_, typename Out_>
struct TileConfig {
  using T = T_;
  using Out = Out_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  static constexpr bool kVariableK = kVariableK_, kPairs = kPairs_;
  static constexpr int kTileCols = kTileCols_;

  static constexpr int kChunksA = kTileRows / 64;
  static constexpr int kChunksB = kTileCols / 64;
  static constexpr int kStageBytes = (kChunksA + kChunksB) * kChunkBytes;
  static constexpr int kStages = kTileCols == 256 ? 4 : 6;
  static constexpr int kStagingBytes = 2 * 2 * kChunkBytes;  // two halves per consumer
  // Per stage two barriers; per slot of the queue of work four, 32 bytes of work and a number.
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kStagingBytes + 2 * kStages * 8 + kWorkSlots * (4 * 8 + 32 + 4);
  static constexpr int kBlocks = kPairs ? 2 : 1;  // of a cluster
};

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

// The position in the ring of stages.
template <int kStages>
struct Ring {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Addresses in shared memory.
template <typename Config>
struct SharedLayout {
  uint32_t base;
  __device__ __forceinline__ uint32_t A(uint32_t stage) const {
    return base + stage * Config::kStageBytes;
  }
  __device__ __forceinline__ uint32_t B(uint32_t stage) const {
    return A(stage) + Config::kChunksA * kChunkBytes;
  }
  __device__ __forceinline__ uint32_t Staging(uint32_t consumer) const {
    return base + Config::kStages * Config::kStageBytes + consumer * 2 * kChunkBytes;
  }
  __device__ __forceinline__ uint32_t Full(uint32_t stage) const { return Staging(2) + stage * 8; }
  __device__ __forceinline__ uint32_t Empty(uint32_t stage) const {
    return Full(Config::kStages) + stage * 8;
  }
  __device__ __forceinline__ uint32_t Work(uint32_t slot) const {
    return Empty(Config::kStages) + slot * 32;
  }
  __device__ __forceinline__ uint32_t WorkFull(uint32_t slot) const {
    return Work(kWorkSlots) + slot * 8;
  }
  __device__ __forceinline__ uint32_t WorkEmpty(uint32_t slot) const {
    return WorkFull(kWorkSlots) + slot * 8;
  }
  __device__ __forceinline__ uint32_t UnitFull(uint32_t slot) const {
    return WorkEmpty(kWorkSlots) + slot * 8;
  }
  __device__ __forceinline__ uint32_t UnitEmpty(uint32_t slot) const {
    return UnitFull(kWorkSlots) + slot * 8;
  }
  __device__ __forceinline__ uint32_t Unit(uint32_t slot) const {
    return UnitEmpty(kWorkSlots) + slot * 4;
  }
};

// ---- which unit is next
//
// A cluster begins with the unit of its own number; every further one is drawn from a counter in
// the plan, so that a cluster whose units were short, or that got its multiprocessors late, draws
// more or fewer of them, and units that are neighbours in the order run at about the same time and
// share their operands in L2. One thread per cluster draws, and sends the number to the producers
// of its blocks; the last number that a cluster draws is past the end, and both blocks stop there.
//
//     producer of block 0: draw --Unit[slot]--> producers of both blocks: WorkOf
//                                               --Work[slot]--> the 8 consumer warps of the block

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
  BarrierWait(at.WorkFull(ring.stage), ring.parity);
  const int4 first = LoadShared4(at.Work(ring.stage));
  const int4 second = LoadShared4(at.Work(ring.stage) + 16);
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(at.WorkEmpty(ring.stage));
  ring.Advance();
  return {first.x, first.y, first.z, first.w, second.x, second.y, false};
}

// The producers of a cluster receive the number of the next unit.
template <typename Config>
__device__ __forceinline__ int32_t TakeUnit(const SharedLayout<Config>& at,
                                            const Ring<kWorkSlots>& ring) {
  BarrierWait(at.UnitFull(ring.stage), ring.parity);
  const auto unit = static_cast<int32_t>(LoadShared(at.Unit(ring.stage)));
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    BarrierArriveExpect(at.UnitFull(ring.stage), 4);  // for the next number in this slot
    BarrierArriveAt(at.UnitEmpty(ring.stage), 0);
  }
  return unit;
}

// Block 0 of a cluster: one thread sends a number to the producers of all blocks.
template <typename Config>
__device__ __forceinline__ void SendUnit(const SharedLayout<Config>& at,
                                         const Ring<kWorkSlots>& ring, int32_t unit) {
  BarrierWait(at.UnitEmpty(ring.stage), ring.parity ^ 1);
  for (int rank = 0; rank < Config::kBlocks; ++rank) {
    SendWord(at.Unit(ring.stage), at.UnitFull(ring.stage), rank, unit);
  }
}

// Loads chunk `chunk` of a tile's A, or of its B, at depth `depth`; to both blocks where `shared`.
template <typename Config>
__device__ __forceinline__ void LoadA(const TileKernelArgs& args, const TileWork& work, uint32_t to,
                                      uint32_t barrier, int chunk, int depth, bool shared) {
  const CUtensorMap* map = Config::kVariableK ? &args.group_maps[2 * work.group] : &args.a;
  const int row = work.row + 64 * chunk;
  const int x = Config::kVariableK ? row : depth;
  const int y = Config::kVariableK ? depth : work.first_row + row;
  to += chunk * kChunkBytes;
  if (shared) {
    LoadBoxToAll(to, map, barrier, 0b11, x, y);
  } else {
    LoadBox(to, map, barrier, x, y);
  }
}
template <typename Config>
__device__ __forceinline__ void LoadB(const TileKernelArgs& args, const TileWork& work, uint32_t to,
                                      uint32_t barrier, int chunk, int depth, bool shared) {
  const int col = work.col + 64 * chunk;
  const int x = Config::kMajorB == kMajorK ? depth : col;
  const int y = Config::kMajorB == kMajorK ? col : depth;
  to += chunk * kChunkBytes;
  if constexpr (Config::kVariableK) {
    const CUtensorMap* map = &args.group_maps[2 * work.group + 1];
    if (shared) {
      LoadBoxToAll(to, map, barrier, 0b11, x, y);
    } else {
      LoadBox(to, map, barrier, x, y);
    }
  } else {
    if (shared) {
      LoadBoxToAll(to, &args.b, barrier, 0b11, x, y, work.group);
    } else {
      LoadBox(to, &args.b, barrier, x, y, work.group);
    }
  }
}

// Fills one stage's share of this block.
template <typename Config>
__device__ __forceinline__ void LoadStage(const TileKernelArgs& args, const TileWork& work,
                                          const SharedLayout<Config>& at, uint32_t stage, int depth,
                                          int rank) {
  const uint32_t full = at.Full(stage);
  if (!Config::kPairs) {
    for (int i = 0; i < Config::kChunksA; ++i) {
      LoadA<Config>(args, work, at.A(stage), full, i, depth, false);
    }
    for (int i = 0; i < Config::kChunksB; ++i) {
      LoadB<Config>(args, work, at.B(stage), full, i, depth, false);
    }
  } else if (work.pair_shares_cols) {
    for (int i = 0; i < Config::kChunksA; ++i) {
      LoadA<Config>(args, work, at.A(stage), full, i, depth, false);
    }
    for (int i = 0; i < Config::kChunksB / 2; ++i) {
      LoadB<Config>(args, work, at.B(stage), full, rank * (Config::kChunksB / 2) + i, depth, true);
    }
  } else {
    LoadA<Config>(args, work, at.A(stage), full, rank, depth, true);
    for (int i = 0; i < Config::kChunksB; ++i) {
      LoadB<Config>(args, work, at.B(stage), full, i, depth, false);
    }
  }
}

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
    unit = TakeUnit(at, slots);
    slots.Advance();
  }
  PublishWork(at, slots, {-1, 0, 0, 0, 0, 0, false});
}

// Tells the producers of the cluster that this warp has done with a stage.
template <typename Config>
__device__ __forceinline__ void ReleaseStage(const SharedLayout<Config>& at, uint32_t stage) {
  const uint32_t lane = threadIdx.x % 32;
  if (Config::kPairs) {
    if (lane < 2) BarrierArriveAt(at.Empty(stage), lane);
  } else {
    if (lane == 0) BarrierArrive(at.Empty(stage));
  }
}

template <typename Config>
__device__ __forceinline__ void Multiply(float (&acc)[Config::kTileCols / 2],
                                         const SharedLayout<Config>& at,
                                         Ring<Config::kStages>& ring, int32_t steps,
                                         int32_t consumer) {
  using Op = Wgmma<typename Config::T, Config::kTileCols, Config::kMajorA, Config::kMajorB>;
#pragma unroll
  for (float& value : acc) value = 0;
#pragma unroll
  for (float& value : acc) PinAccumulator(value);
  uint32_t before = 0;
#pragma unroll 1
  for (int32_t i = 0; i < steps; ++i) {
    BarrierWait(at.Full(ring.stage), ring.parity);
    const uint64_t a = MatrixDescriptor(at.A(ring.stage) + consumer * kChunkBytes);
    const uint64_t b = MatrixDescriptor(at.B(ring.stage));
    WarpgroupArrive();
#pragma unroll
    for (int k = 0; k < kTileDepth / 16; ++k) {
      Op::Issue(acc, a + k * DescriptorStep(Config::kMajorA),
                b + k * DescriptorStep(Config::kMajorB));
    }
    WarpgroupCommit();
    // All but the products just issued are done, so the stage before is free.
    WarpgroupWait<1>();
    if (i > 0) ReleaseStage(at, before);
    before = ring.stage;
    ring.Advance();
  }
  WarpgroupWait<0>();
#pragma unroll
  for (float& value : acc) PinAccumulator(value);
  if (steps > 0) ReleaseStage(at, before);
}

// Lets `steps` stages pass unread.
template <typename Config>
__device__ __forceinline__ void Pass(const SharedLayout<Config>& at, Ring<Config::kStages>& ring,
                                     int32_t steps) {
#pragma unroll 1
  for (int32_t i = 0; i < steps; ++i) {
    BarrierWait(at.Full(ring.stage), ring.parity);
    ReleaseStage(at, ring.stage);
    ring.Advance();
  }
}

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
          uint4 value;
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                       : "r"(buffer + r * 128 + ((unit ^ (r % 8)) << 4))
                       : "memory");
          const int64_t index =
              int64_t{work.first_row + row + r} * args.tiling.cols + col + unit * 8;
          *reinterpret_cast<uint4*>(static_cast<T*>(args.out_data) + index) = value;
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
