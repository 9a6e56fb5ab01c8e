// Question: is a side of one grouped product too long for its kernels?
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace moeprof {

// A complaint about the first side that is longer than `longest`, or nothing.
inline std::optional<std::string> CheckSides(std::initializer_list<int64_t> sides,
                                             int64_t longest) {
  for (const int64_t side : sides) {
    if (side > longest) {
      return "a side of " + std::to_string(side) + " is past the limit of " +
             std::to_string(longest) + " of one product";
    }
  }
  return std::nullopt;
}

}  // namespace moeprof
