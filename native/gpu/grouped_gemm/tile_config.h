// Question: how large is a tile of the grouped GEMM, and where in shared memory do its parts lie?
//
// From the base, which is a multiple of 1024 as swizzling counts on it: the stages, each A then B
// in chunks of 64 x 64 values; two staging chunks for each consumer; the barriers of the stages;
// the slots of work (tile_work.h).
#pragma once

#include <cstdint>

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

}  // namespace moeprof::gpu
