// Question: where does a value of JSON text begin and end, and of which kind is it?
//
// The grammar is that of Python's json module (strict=False: control characters may stand in
// strings; NaN and Infinity are constants). Every byte is checked against the end, each is looked
// at once, and values nest up to a bound, so hostile text costs at most its length.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace moeprof::chrome {

enum class Kind : uint8_t {
  kAbsent,
  kString,
  kWhole,     // a number without fraction and exponent
  kFraction,  // any other number
  kBool,
  kOther,  // null, NaN, infinities
  kArray,
  kObject,
};

// A value as it is written; a string with its quotes.
struct Token {
  Kind kind = Kind::kAbsent;
  bool is_escaped = false;
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;

  std::string_view Raw() const {
    return {reinterpret_cast<const char*>(begin), static_cast<size_t>(end - begin)};
  }
  // What stands between the quotes of a string.
  std::string_view Inside() const { return Raw().substr(1, Raw().size() - 2); }
};

enum class Fault : uint8_t {
  kNone,
  kCut,  // the text ends inside the value
  kOdd,  // it is no JSON, or its numbers are longer or its values deeper than is decided here
};

// Reads on from a place. What returns a bool is false at a fault.
class Scanner {
 public:
  Scanner(const uint8_t* here, const uint8_t* end) : here_(here), end_(end) {}

  const uint8_t* here() const { return here_; }
  Fault fault() const { return fault_; }
  // Whether a byte beyond ASCII was met.
  bool has_wide() const { return has_wide_; }

  // Passes over space; a fault where the text ends.
  inline bool Space() {
    while (here_ != end_ && IsSpace(*here_)) ++here_;
    return here_ != end_ || Cut();
  }

  // Reads the value that starts here.
  inline bool Value(Token* token, int depth) {
    token->begin = here_;
    token->is_escaped = false;
    const bool is_read = Start(token, depth);
    token->end = here_;
    return is_read;
  }

  // Reads the object that starts here; `member(key)` reads the value of each key.
  template <typename Member>
  inline bool Object(const Member& member) {
    ++here_;
    if (!Space()) return false;
    if (*here_ == '}') return Pass();
    for (;;) {
      if (*here_ != '"') return Odd();
      Token key;
      key.begin = here_;
      if (!String(&key)) return false;
      key.end = here_;
      if (!Space()) return false;
      if (*here_ != ':') return Odd();
      ++here_;
      if (!Space() || !member(key) || !Space()) return false;
      if (*here_ == '}') return Pass();
      if (*here_ != ',') return Odd();
      ++here_;
      if (!Space()) return false;
    }
  }

 private:
  static constexpr int kDeepest = 64;
  static constexpr int64_t kLongestNumber = 300;  // Python reads whole ones of up to 640 at least

  static bool IsSpace(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
  }
  static bool IsDigit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

  bool Cut() {
    fault_ = Fault::kCut;
    return false;
  }
  bool Odd() {
    fault_ = Fault::kOdd;
    return false;
  }
  bool Pass() {
    ++here_;
    return true;
  }

  inline bool Start(Token* token, int depth) {
    switch (*here_) {
      case '"':
        return String(token);
      case '{':
        token->kind = Kind::kObject;
        return depth < kDeepest ? Object([&](const Token&) {
          Token value;
          return Value(&value, depth + 1);
        })
                                : Odd();
      case '[':
        token->kind = Kind::kArray;
        return depth < kDeepest ? Array(depth + 1) : Odd();
      case 't':
        token->kind = Kind::kBool;
        return Word("true");
      case 'f':
        token->kind = Kind::kBool;
        return Word("false");
      case 'n':
        token->kind = Kind::kOther;
        return Word("null");
      case 'N':
        token->kind = Kind::kOther;
        return Word("NaN");
      case 'I':
        token->kind = Kind::kOther;
        return Word("Infinity");
      default:
        return Number(token);
    }
  }

  bool Array(int depth);
  bool Number(Token* token);
  bool Digits();
  bool Word(std::string_view word);
  bool Escape();

  // The string that starts here.
  inline bool String(Token* token) {
    token->kind = Kind::kString;
    ++here_;
    for (;;) {
      SkipPlain();
      if (here_ == end_) return Cut();
      if (*here_ == '"') return Pass();
      if (*here_ != '\\') {  // beyond ASCII
        has_wide_ = true;
        ++here_;
        continue;
      }
      token->is_escaped = true;
      if (!Escape()) return false;
    }
  }

  // Stops at a quote, a backslash, a byte beyond ASCII or the end; eight bytes at a time.
  inline void SkipPlain() {
    constexpr uint64_t kOnes = 0x0101010101010101, kTops = 0x8080808080808080;
    const auto zeros = [](uint64_t word) { return (word - kOnes) & ~word; };
    while (end_ - here_ >= 8) {
      uint64_t word;
      std::memcpy(&word, here_, sizeof(word));
      const uint64_t found =
          (zeros(word ^ (kOnes * '"')) | zeros(word ^ (kOnes * '\\')) | word) & kTops;
      if (found != 0) {  // the lowest mark is right, whatever those above it are
        here_ += __builtin_ctzll(found) / 8;
        return;
      }
      here_ += 8;
    }
    while (here_ != end_ && *here_ != '"' && *here_ != '\\' && *here_ < 0x80) ++here_;
  }

  const uint8_t* here_;
  const uint8_t* end_;
  Fault fault_ = Fault::kNone;
  bool has_wide_ = false;
};

// Whether bytes are UTF-8 as Unicode defines it: no overlong forms, no halves of pairs.
bool IsUtf8(const uint8_t* here, const uint8_t* end);

}  // namespace moeprof::chrome
