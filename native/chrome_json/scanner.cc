#include "chrome_json/scanner.h"

#include <cctype>

namespace moeprof::chrome {

bool Scanner::Array(int depth) {
  ++here_;
  if (!Space()) return false;
  if (*here_ == ']') return Pass();
  for (;;) {
    Token value;
    if (!Value(&value, depth) || !Space()) return false;
    if (*here_ == ']') return Pass();
    if (*here_ != ',') return Odd();
    ++here_;
    if (!Space()) return false;
  }
}

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
bool Scanner::Number(Token* token) {
  const uint8_t* const begin = here_;
  token->kind = Kind::kWhole;
  if (*here_ == '-') {
    if (++here_ == end_) return Cut();
    if (*here_ == 'I') {
      token->kind = Kind::kOther;
      return Word("Infinity");
    }
  }
  if (*here_ == '0') {
    if (++here_ == end_) return Cut();
  } else if (!Digits()) {
    return false;
  }
  if (*here_ == '.') {
    token->kind = Kind::kFraction;
    ++here_;
    if (!Digits()) return false;
  }
  if (*here_ == 'e' || *here_ == 'E') {
    token->kind = Kind::kFraction;
    if (++here_ == end_) return Cut();
    if ((*here_ == '+' || *here_ == '-') && ++here_ == end_) return Cut();
    if (!Digits()) return false;
  }
  return here_ - begin <= kLongestNumber || Odd();
}

// At least one, and something behind them.
bool Scanner::Digits() {
  const uint8_t* const begin = here_;
  while (here_ != end_ && IsDigit(*here_)) ++here_;
  if (here_ == end_) return Cut();
  return here_ != begin || Odd();
}

bool Scanner::Word(std::string_view word) {
  for (const char letter : word) {
    if (here_ == end_) return Cut();
    if (*here_ != static_cast<uint8_t>(letter)) return Odd();
    ++here_;
  }
  return true;
}

bool Scanner::Escape() {
  if (++here_ == end_) return Cut();
  const uint8_t letter = *here_++;
  if (letter != 'u') return std::strchr("\"\\/bfnrt", letter) != nullptr && letter ? true : Odd();
  for (int digit = 0; digit < 4; ++digit, ++here_) {
    if (here_ == end_) return Cut();
    if (std::isxdigit(*here_) == 0) return Odd();
  }
  return true;
}

bool IsUtf8(const uint8_t* here, const uint8_t* end) {
  while (here != end) {
    const uint8_t first = *here++;
    if (first < 0x80) continue;
    if (first < 0xC2 || first > 0xF4) return false;
    const int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (end - here < more) return false;
    // what may follow the first byte is narrower where a form would be overlong, half of a pair or
    // beyond the last character
    const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (*here < low || *here > high) return false;
    for (int at = 1; at < more; ++at) {
      if ((here[at] & 0xC0) != 0x80) return false;
    }
    here += more;
  }
  return true;
}

}  // namespace moeprof::chrome
