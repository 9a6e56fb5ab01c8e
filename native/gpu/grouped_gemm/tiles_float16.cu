#include "gpu/grouped_gemm/tile_launch.h"

namespace moeprof::gpu {

cudaError_t LaunchTilesFloat16(const TileLaunch& launch, const TileKernelArgs& args, bool trans_b) {
  return LaunchForward<__half>(launch, args, trans_b);
}

}  // namespace moeprof::gpu
