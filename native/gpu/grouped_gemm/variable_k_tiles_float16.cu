#include "gpu/grouped_gemm/tile_launch.h"

namespace moeprof::gpu {

cudaError_t LaunchVariableKTilesFloat16(const TileLaunch& launch, const TileKernelArgs& args,
                                        bool float_out) {
  return LaunchVariableK<__half>(launch, args, float_out);
}

}  // namespace moeprof::gpu
