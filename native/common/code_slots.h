// Question: which code does a text have that was met before? The texts are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeprof {

// Codes count from 0 in order of first appearance.
class CodeSlots {
 public:
  // The code of this hash for which `is_it(code)` holds, else the next one, which is the text's
  // from now on.
  template <typename IsIt>
  int32_t Code(size_t hash, const IsIt& is_it) {
    if (2 * hashes_.size() >= slots_.size()) Grow();
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      const auto code = static_cast<size_t>(slots_[slot]);
      if (hashes_[code] == hash && is_it(code)) return slots_[slot];
    }
    slots_[slot] = static_cast<int32_t>(hashes_.size());
    hashes_.push_back(hash);
    return slots_[slot];
  }

 private:
  void Grow() {
    slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), -1);
    const size_t mask = slots_.size() - 1;
    for (size_t code = 0; code < hashes_.size(); ++code) {
      size_t slot = hashes_[code] & mask;
      while (slots_[slot] >= 0) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<int32_t>(code);
    }
  }

  std::vector<size_t> hashes_;
  std::vector<int32_t> slots_;  // -1: free; a power of two of them, at most half in use
};

}  // namespace moeprof
