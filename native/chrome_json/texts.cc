#include "chrome_json/texts.h"

#include <functional>

namespace moeprof::chrome {

std::string_view Texts::View(size_t at) const {
  const auto begin = static_cast<size_t>(table_[3 * at + 1]);
  const auto end = static_cast<size_t>(table_[3 * at + 2]);
  return {content_.data() + begin, end - begin};
}

void Texts::Grow() {
  slots_.assign(slots_.empty() ? 1024 : 2 * slots_.size(), -1);
  const size_t mask = slots_.size() - 1;
  for (size_t at = 0; at < hashes_.size(); ++at) {
    size_t slot = hashes_[at] & mask;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<int32_t>(at);
  }
}

int64_t Texts::Code(Written how, std::string_view text) {
  if (2 * hashes_.size() >= slots_.size()) Grow();
  const size_t hash = std::hash<std::string_view>()(text) + static_cast<size_t>(how);
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    const auto at = static_cast<size_t>(slots_[slot]);
    if (hashes_[at] == hash && table_[3 * at] == static_cast<int64_t>(how) && View(at) == text) {
      return slots_[slot] + 1;
    }
  }
  const auto begin = static_cast<int64_t>(content_.size());
  content_.insert(content_.end(), text.begin(), text.end());
  table_.insert(table_.end(),
                {static_cast<int64_t>(how), begin, begin + static_cast<int64_t>(text.size())});
  hashes_.push_back(hash);
  slots_[slot] = static_cast<int32_t>(hashes_.size() - 1);
  return slots_[slot] + 1;
}

}  // namespace moeprof::chrome
