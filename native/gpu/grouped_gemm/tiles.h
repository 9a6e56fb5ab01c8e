// Question: which tile kernel runs a grouped GEMM on tensor cores?
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/grouped_gemm/tile_args.h"
#include "gpu/runtime/element_type.h"

namespace moeprof::gpu {

// Multiprocessors to use; a kernel with pairs starts an even number of blocks.
struct TileLaunch {
  cudaStream_t stream;
  int32_t blocks;
};

// One function per element type, each in its own file so that they compile side by side.
cudaError_t LaunchTilesBFloat16(const TileLaunch& launch, const TileKernelArgs& args, bool trans_b);
cudaError_t LaunchTilesFloat16(const TileLaunch& launch, const TileKernelArgs& args, bool trans_b);
cudaError_t LaunchVariableKTilesBFloat16(const TileLaunch& launch, const TileKernelArgs& args,
                                         bool float_out);
cudaError_t LaunchVariableKTilesFloat16(const TileLaunch& launch, const TileKernelArgs& args,
                                        bool float_out);

}  // namespace moeprof::gpu
