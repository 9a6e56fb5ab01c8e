// Question: how is one instance of the tile kernel started?
#pragma once

#include <cuda_runtime.h>

#include "gpu/grouped_gemm/tile_kernel.h"
#include "gpu/grouped_gemm/tiles.h"

namespace moeprof::gpu {

template <typename Config>
cudaError_t LaunchTilesOf(const TileLaunch& launch, const TileKernelArgs& args) {
  auto* const kernel = GroupedGemmTiles<Config>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Config::kBlocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  const int blocks = launch.blocks / Config::kBlocks * Config::kBlocks;
  config.gridDim = dim3(blocks > 0 ? blocks : Config::kBlocks);
  config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = Config::kSharedBytes;
  config.stream = launch.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, kernel, args);
  return error != cudaSuccess ? error : cudaGetLastError();
}

template <typename T, Major kMajorA, Major kMajorB, bool kVariableK, typename Out>
cudaError_t LaunchTiles(const TileLaunch& launch, const TileKernelArgs& args) {
  const Tiling& tiling = args.tiling;
  if (tiling.tile_cols == 128) {
    return LaunchTilesOf<TileConfig<T, kMajorA, kMajorB, kVariableK, 128, false, Out>>(launch,
                                                                                       args);
  }
  if (!tiling.pairs) {
    return LaunchTilesOf<TileConfig<T, kMajorA, kMajorB, kVariableK, 256, false, Out>>(launch,
                                                                                       args);
  }
  return LaunchTilesOf<TileConfig<T, kMajorA, kMajorB, kVariableK, 256, true, Out>>(launch, args);
}

// The product with b as stored: [k, n] has n along its rows, [n, k] (trans_b) has k.
template <typename T>
cudaError_t LaunchForward(const TileLaunch& launch, const TileKernelArgs& args, bool trans_b) {
  return trans_b ? LaunchTiles<T, kMajorK, kMajorK, false, T>(launch, args)
                 : LaunchTiles<T, kMajorK, kMajorMN, false, T>(launch, args);
}

template <typename T>
cudaError_t LaunchVariableK(const TileLaunch& launch, const TileKernelArgs& args, bool float_out) {
  return float_out ? LaunchTiles<T, kMajorMN, kMajorMN, true, float>(launch, args)
                   : LaunchTiles<T, kMajorMN, kMajorMN, true, T>(launch, args);
}

}  // namespace moeprof::gpu
