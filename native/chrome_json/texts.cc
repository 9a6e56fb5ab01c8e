#include "chrome_json/texts.h"

#include <functional>

namespace moeprof::chrome {

int64_t Texts::Code(Written how, std::string_view text) {
  const auto kind = static_cast<int64_t>(how);
  const auto is_it = [&](size_t code) {
    const int64_t* const row = &table_[3 * code];
    const auto begin = static_cast<size_t>(row[1]), end = static_cast<size_t>(row[2]);
    return row[0] == kind && std::string_view(content_.data() + begin, end - begin) == text;
  };
  const size_t hash = std::hash<std::string_view>()(text) + static_cast<size_t>(how);
  const int32_t code = slots_.Code(hash, is_it);
  if (code == count()) {
    const auto begin = static_cast<int64_t>(content_.size());
    content_.insert(content_.end(), text.begin(), text.end());
    table_.insert(table_.end(), {kind, begin, begin + static_cast<int64_t>(text.size())});
  }
  return code + 1;
}

}  // namespace moeprof::chrome
