// Question: how long may a side of one grouped product be?
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "common/sides.h"

namespace moeprof::gpu {

// Rows and columns are counted in int32, and rounded up to whole pairs of tiles, at most 512 long
// (work_units.h). A multiple of 512 is its own ceiling, so nothing up to this one overflows.
constexpr int64_t kLongestSide = (int64_t{1} << 31) - 512;

inline std::optional<std::string> CheckSides(std::initializer_list<int64_t> sides) {
  return moeprof::CheckSides(sides, kLongestSide);
}

}  // namespace moeprof::gpu
