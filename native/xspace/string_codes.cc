#include "xspace/string_codes.h"

#include <functional>

namespace moeprof::xspace {

size_t StringCodes::Slot(std::string_view text, size_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const int32_t code = slots_[slot];
    if (code < 0) return slot;
    const size_t at = static_cast<size_t>(code);
    if (hashes_[at] == hash && View(texts_[at]) == text) return slot;
  }
}

void StringCodes::Grow() {
  slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), -1);
  const size_t mask = slots_.size() - 1;
  for (size_t code = 0; code < texts_.size(); ++code) {
    size_t slot = hashes_[code] & mask;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<int32_t>(code);
  }
}

int32_t StringCodes::Code(Span text) {
  if (2 * texts_.size() >= slots_.size()) Grow();
  const std::string_view view = View(text);
  const size_t hash = std::hash<std::string_view>()(view);
  int32_t& slot = slots_[Slot(view, hash)];
  if (slot < 0) {
    slot = static_cast<int32_t>(texts_.size());
    texts_.push_back(text);
    hashes_.push_back(hash);
  }
  return slot;
}

}  // namespace moeprof::xspace
