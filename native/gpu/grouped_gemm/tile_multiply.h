// Question: how does a consumer warpgroup multiply the stages of a tile, or let them pass?
#pragma once

#include <cstdint>

#include "gpu/grouped_gemm/hopper.h"
#include "gpu/grouped_gemm/tile_config.h"
#include "gpu/grouped_gemm/wgmma.h"

namespace moeprof::gpu {

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

}  // namespace moeprof::gpu
