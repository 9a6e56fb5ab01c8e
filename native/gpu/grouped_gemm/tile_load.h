// Question: which boxes of the operands does a block load for one stage of a tile?
//
// What may run over an edge and what keeps it right:
//   A rows past the group's end are read (they are the next group's, or zeros past the last row);
//   they reach only output rows that are not stored. Depth past k, columns past n: zeros, by TMA.
//   dB: rows past the group's end are zeros, because each group has its own tensor maps.
#pragma once

#include <cstdint>

#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/tile_args.h"
#include "gpu/grouped_gemm/tile_config.h"
#include "gpu/grouped_gemm/tile_work.h"

namespace moeprof::gpu {

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

}  // namespace moeprof::gpu
