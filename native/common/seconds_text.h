// Question: how is a duration written in a message?
#pragma once

#include <chrono>
#include <string>

namespace moeprof {

// "0.5 s", "300 s": to the millisecond, without zeros at the end. Integers alone, since the decimal
// sign of std::to_string follows the locale.
inline std::string SecondsText(std::chrono::milliseconds duration) {
  std::string thousandths = std::to_string(1000 + duration.count() % 1000).substr(1);
  thousandths.erase(thousandths.find_last_not_of('0') + 1);
  return std::to_string(duration.count() / 1000) + (thousandths.empty() ? "" : "." + thousandths) +
         " s";
}

}  // namespace moeprof
