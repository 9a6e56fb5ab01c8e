// Question: what does a kernel say about lengths of groups that are not sound?
#pragma once

#include <cstdint>

namespace moeprof::gpu {

enum class LengthsFaultKind : int32_t {
  kNone = 0,
  kNegative,   // lengths[index] is `found`
  kPastRows,   // lengths[index] is `found`; with those before it the sum is `sum`, past `expected`
  kNotTheSum,  // offsets[index] is `found`, but the lengths before it sum to `expected`
};

// In pinned host memory. `claimed` goes from 0 to 1 by the one thread that reports.
struct LengthsFault {
  int32_t claimed;
  LengthsFaultKind kind;
  int64_t index, found, sum, expected;
  int64_t element;  // batch element of the lengths, or -1 where all share them
};

}  // namespace moeprof::gpu
