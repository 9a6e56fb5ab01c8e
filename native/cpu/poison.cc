#include "cpu/poison.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace moeprof {
namespace {

bool EnabledByEnvironment() {
  const char* value = std::getenv("MOEPROF_POISON");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

std::atomic<bool>& Flag() {
  static std::atomic<bool> flag{EnabledByEnvironment()};
  return flag;
}

template <typename Bits>
int64_t FindAllOnes(const Bits* data, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (data[i] == static_cast<Bits>(~Bits{0})) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace

bool PoisonEnabled() { return Flag().load(std::memory_order_relaxed); }

void PoisonRows(void* data, size_t size_bytes) {
  constexpr uint16_t kUnusedRow = 0xFFC1;
  std::fill_n(static_cast<uint16_t*>(data), size_bytes / sizeof(kUnusedRow), kUnusedRow);
}

void FillUnusedRows(void* data, size_t size_bytes, bool poison) {
  if (poison) return PoisonRows(data, size_bytes);
  if (size_bytes > 0) std::memset(data, 0, size_bytes);
}

void PoisonOutput(void* data, size_t size_bytes) {
  if (size_bytes > 0) std::memset(data, 0xFF, size_bytes);
}

int64_t FindUnwritten(const void* data, size_t count, size_t element_bytes) {
  if (element_bytes == 2) return FindAllOnes(static_cast<const uint16_t*>(data), count);
  return FindAllOnes(static_cast<const uint32_t*>(data), count);
}

}  // namespace moeprof

int MoeprofSetPoison(int enabled) { return moeprof::Flag().exchange(enabled != 0) ? 1 : 0; }
