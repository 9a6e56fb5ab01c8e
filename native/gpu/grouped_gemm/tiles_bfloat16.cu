#include "gpu/grouped_gemm/tile_launch.h"

namespace moeprof::gpu {

cudaError_t LaunchTilesBFloat16(const TileLaunch& launch, const TileKernelArgs& args,
                                bool trans_b) {
  return LaunchForward<__nv_bfloat16>(launch, args, trans_b);
}

}  // namespace moeprof::gpu
