#include "cpu/common/poison.h"

#include <algorithm>
#include <cstring>

#include "common/nan_bits.h"
#include "common/poison_switch.h"

namespace moeprof {
namespace {

template <typename Bits>
int64_t FindAllOnes(const Bits* data, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (data[i] == static_cast<Bits>(~Bits{0})) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace

bool PoisonEnabled() { return PoisonSwitch().load(std::memory_order_relaxed); }

void PoisonRows(void* data, size_t size_bytes) {
  std::fill_n(static_cast<uint16_t*>(data), size_bytes / sizeof(kUnusedRowBits), kUnusedRowBits);
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

int MoeprofSetPoison(int enabled) { return moeprof::PoisonSwitch().exchange(enabled != 0) ? 1 : 0; }
