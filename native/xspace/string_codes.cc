#include "xspace/string_codes.h"

#include <functional>

namespace moeprof::xspace {

int32_t StringCodes::Code(Span text) {
  const std::string_view view = View(text);
  const auto is_it = [&](size_t code) { return View(texts_[code]) == view; };
  const int32_t code = slots_.Code(std::hash<std::string_view>()(view), is_it);
  if (static_cast<size_t>(code) == texts_.size()) texts_.push_back(text);
  return code;
}

}  // namespace moeprof::xspace
