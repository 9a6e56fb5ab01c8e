#include "gpu/grouped_gemm/tile_launch.h"

namespace moeprof::gpu {

cudaError_t LaunchVariableKTilesBFloat16(const TileLaunch& launch, const TileKernelArgs& args,
                                         bool float_out) {
  return LaunchVariableK<__nv_bfloat16>(launch, args, float_out);
}

}  // namespace moeprof::gpu
