// Question: how long may a side of one grouped product be?
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace moeprof::gpu {

// Rows and columns are counted in int32, and rounded up to whole pairs of tiles, at most 512 long
// (work_units.h). A multiple of 512 is its own ceiling, so nothing up to this one overflows.
constexpr int64_t kLongestSide = (int64_t{1} << 31) - 512;

// A complaint about the first side past the limit, or nothing.
inline std::optional<std::string> CheckSides(std::initializer_list<int64_t> sides) {
  for (const int64_t side : sides) {
    if (side > kLongestSide) {
      return "a side of " + std::to_string(side) + " is past the limit of " +
             std::to_string(kLongestSide) + " of one product";
    }
  }
  return std::nullopt;
}

}  // namespace moeprof::gpu
