// Question: which code does a text have? Each distinct text is kept once, as a stretch of the file.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/code_slots.h"
#include "xspace/wire.h"

namespace moeprof::xspace {

// Codes count from 0 in order of first appearance.
class StringCodes {
 public:
  explicit StringCodes(const uint8_t* data) : data_(data) {}

  int32_t Code(Span text);
  const std::vector<Span>& texts() const { return texts_; }

 private:
  std::string_view View(Span text) const {
    return {reinterpret_cast<const char*>(data_) + text.begin,
            static_cast<size_t>(text.end - text.begin)};
  }

  const uint8_t* data_;
  std::vector<Span> texts_;
  CodeSlots slots_;
};

}  // namespace moeprof::xspace
