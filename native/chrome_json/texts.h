// Question: which code does a text have? Each distinct one is kept once, as it is written.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/code_slots.h"

namespace moeprof::chrome {

// How the caller makes a label of what is written; numbered as `Written` in native_elements.py.
enum class Written : uint8_t { kId = 0, kText = 1, kJson = 2 };

// Codes count from 1 in order of first appearance; 0 is the caller's empty text.
class Texts {
 public:
  int64_t Code(Written how, std::string_view text);

  int64_t count() const { return static_cast<int64_t>(table_.size() / 3); }
  // How, begin and end of each, row by row.
  const std::vector<int64_t>& table() const { return table_; }
  const std::vector<char>& content() const { return content_; }

 private:
  std::vector<char> content_;
  std::vector<int64_t> table_;
  CodeSlots slots_;
};

}  // namespace moeprof::chrome
