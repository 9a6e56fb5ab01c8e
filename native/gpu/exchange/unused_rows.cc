#include "gpu/exchange/unused_rows.h"

#include "common/nan_bits.h"
#include "common/poison_switch.h"

namespace moeprof::gpu {

uint32_t UnusedRowBits() {
  constexpr uint32_t kTwice = kUnusedRowBits * 0x10001u;
  return PoisonSwitch().load(std::memory_order_relaxed) ? kTwice : 0;
}

}  // namespace moeprof::gpu

int MoeprofGpuSetPoison(int enabled) {
  return moeprof::PoisonSwitch().exchange(enabled != 0) ? 1 : 0;
}
