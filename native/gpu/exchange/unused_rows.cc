#include "gpu/exchange/unused_rows.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace moeprof::gpu {
namespace {

constexpr uint32_t kPoison = 0xFFC1FFC1;

bool IsPoisonedByEnvironment() {
  const char* const value = std::getenv("MOEPROF_POISON");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

std::atomic<bool>& Switch() {
  static std::atomic<bool> is_on{IsPoisonedByEnvironment()};
  return is_on;
}

}  // namespace

uint32_t UnusedRowBits() { return Switch().load(std::memory_order_relaxed) ? kPoison : 0; }

}  // namespace moeprof::gpu

int MoeprofGpuSetPoison(int enabled) {
  return moeprof::gpu::Switch().exchange(enabled != 0) ? 1 : 0;
}
