// Question: what do the exchange kernels on a GPU refuse of buffers that fit each other?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moeprof::gpu {

// Kernels count in int32, tokens by halves of their rows, and take one step past the last: of at
// most as many as the grid has warps or threads, and a channel is rounded up. So up to twice this
// and nearly 2^21 more must fit.
constexpr int64_t kMostRows = (int64_t{1} << 30) - (int64_t{1} << 20);

// `rows` are EP times the tokens of a rank. The lanes of a group of 32 threads have a slot each.
inline std::optional<std::string> CheckLimits(int64_t rows, int64_t top_k) {
  constexpr int64_t kMostSlots = 32;
  if (rows > kMostRows) {
    return "expected at most " + std::to_string(kMostRows) + " rows (tokens * EP), found " +
           std::to_string(rows);
  }
  if (top_k > kMostSlots) {
    return "expected at most " + std::to_string(kMostSlots) + " experts per token, found " +
           std::to_string(top_k);
  }
  return std::nullopt;
}

// Rows are copied in words of that many bytes.
inline std::optional<std::string> CheckRowBytes(int64_t row_bytes, int64_t word_bytes) {
  if (row_bytes % word_bytes == 0) return std::nullopt;
  return "rows must be a multiple of " + std::to_string(word_bytes) + " bytes, found " +
         std::to_string(row_bytes);
}

}  // namespace moeprof::gpu
