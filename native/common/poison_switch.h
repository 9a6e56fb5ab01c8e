// Question: is poison mode on?
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace moeprof {

// Of the library that asks: a process may have loaded the CPU's and the GPU's. On from the start
// where MOEPROF_POISON=1.
inline std::atomic<bool>& PoisonSwitch() {
  static std::atomic<bool> is_on{[] {
    const char* const value = std::getenv("MOEPROF_POISON");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }()};
  return is_on;
}

}  // namespace moeprof
