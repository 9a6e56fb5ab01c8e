// Question: do the exchange kernels' counts of the most rows that they take stay within int32?
//
// To be built with -fsanitize=signed-integer-overflow and without recovery: an overflow ends it.
// With an argument, the rows to try in place of the most.
#include <cstdio>
#include <cstdlib>

#include "gpu/exchange/limits.h"

int main(int count, char** values) {
  using moeprof::gpu::CheckLimits;
  using moeprof::gpu::kMostRows;
  const int64_t rows = count > 1 ? std::strtoll(values[1], nullptr, 10) : kMostRows;
  if (auto complaint = CheckLimits(rows, 1)) {
    std::puts(complaint->c_str());
    std::fflush(stdout);  // an overflow below would lose it
  }
  // In a group of one rank all rows are tokens. A grid has at most 2^20 warps.
  volatile int32_t tokens = static_cast<int32_t>(rows), warps = 1 << 20, channels = 1 << 10;
  const int32_t last_part = 2 * tokens - 1 + warps;
  const int32_t rounded = tokens + channels - 1;
  std::puts(last_part > 0 && rounded > 0 ? "ok" : "a count is negative");
  return 0;
}
