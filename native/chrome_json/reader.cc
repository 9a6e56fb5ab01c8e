#include "chrome_json/reader.h"

#include <algorithm>
#include <utility>

namespace moeprof::chrome {
namespace {

// Places in a row that are not described: what `row[:6]` sets in gathered.py.
enum Place : size_t { kProcess, kThread, kCategory, kEvent, kStartNs, kEndNs };

constexpr int64_t kLargest = int64_t{1} << 62;

bool IsDigit(char letter) { return letter >= '0' && letter <= '9'; }

uint8_t Bucket(std::string_view key) {
  if (key.empty()) return 0;
  return static_cast<uint8_t>(key.size() * 7 + static_cast<uint8_t>(key.front()) * 3 +
                              static_cast<uint8_t>(key.back()));
}

// A stamp in microseconds, rounded down. False where it is written in a way that is not decided
// here: a sign, an exponent, a text, more digits than Python's decimals keep.
bool Nanoseconds(const Token& token, int64_t* value) {
  constexpr size_t kMostBefore = 16, kMostInAll = 25;
  if (token.kind != Kind::kWhole && token.kind != Kind::kFraction) return false;
  const std::string_view text = token.Raw();
  const size_t dot = std::min(text.find('.'), text.size());
  if (dot > kMostBefore || text.size() > kMostInAll) return false;
  uint64_t sum = 0;
  for (size_t at = 0; at < dot; ++at) {
    if (!IsDigit(text[at])) return false;
    sum = 10 * sum + static_cast<uint64_t>(text[at] - '0');
  }
  for (size_t at = dot + 1; at < dot + 4; ++at) {
    const char letter = at < text.size() ? text[at] : '0';
    if (!IsDigit(letter)) return false;
    sum = 10 * sum + static_cast<uint64_t>(letter - '0');
  }
  for (size_t at = dot + 4; at < text.size(); ++at) {
    if (!IsDigit(text[at])) return false;
  }
  *value = static_cast<int64_t>(sum);
  return sum < static_cast<uint64_t>(kLargest);
}

}  // namespace

size_t Reader::ArgumentOf(std::string_view key) {
  for (size_t at = 0; at < arguments_.size(); ++at) {
    if (arguments_[at].key == key) return at;
  }
  buckets_[Bucket(key)].push_back(static_cast<uint8_t>(arguments_.size()));
  arguments_.push_back({std::string(key)});
  return arguments_.size() - 1;
}

std::vector<Reader::Column>* Reader::ColumnsOf(Role role) {
  switch (role) {
    case Role::kNumber:
      return &numbers_;
    case Role::kText:
      return &texts_of_;
    case Role::kCallNumber:
      return &call_numbers_;
    case Role::kCallText:
      return &call_texts_;
    default:
      return &messages_;
  }
}

// The column's place in the list of its role.
int64_t Reader::AddArgument(Role role, int64_t place, std::string_view text) {
  std::vector<Column>& columns = *ColumnsOf(role);
  const auto is_there = [place](const Column& column) { return column.place == place; };
  auto found = std::find_if(columns.begin(), columns.end(), is_there);
  if (found == columns.end()) found = columns.insert(found, {place, {}});
  found->arguments.push_back(ArgumentOf(text));
  return found - columns.begin();
}

bool Reader::Describe(Role role, int64_t place, std::string_view text) {
  if (arguments_.size() == kMost) return false;
  switch (role) {
    case Role::kCalls:
      call_categories_.emplace_back(text);
      return true;
    case Role::kLaunch:
      launch_categories_.emplace_back(text);
      launch_place_ = place;
      return true;
    case Role::kIgnored:
      ignored_.emplace_back(text);
      return true;
    default:
      break;
  }
  const int64_t column = AddArgument(role, place, text);
  Argument& argument = arguments_[ArgumentOf(text)];
  if (role == Role::kNumber) {
    argument.number = column;
  } else if (role == Role::kText) {
    argument.text = column;
  } else {
    argument.is_of_call = true;
  }
  return true;
}

Stop Reader::ReadEvents(const uint8_t* data, int64_t begin, int64_t size, Report* report) {
  const uint8_t *here = data + begin, *const end = data + size;
  for (;;) {
    Scanner between(here, end);
    while (between.Space() && *between.here() == ',') between = Scanner(between.here() + 1, end);
    here = between.here();
    report->at = here - data;
    if (here == end) return Stop::kMore;
    if (*here != '{') return Stop::kOther;
    if (report->rows == room_.rows) return Stop::kFull;
    Scanner scanner(here, end);
    if (!ScanEvent(&scanner)) {
      return scanner.fault() == Fault::kCut ? Stop::kMore : Stop::kOther;
    }
    const bool is_text = !scanner.has_wide() || IsUtf8(here, scanner.here());
    if (!is_text || !TakeEvent(report)) {
      report->end = scanner.here() - data;
      return Stop::kWhole;
    }
    here = scanner.here();
  }
}

bool Reader::ScanEvent(Scanner* scanner) {
  keys_.fill(Token());
  present_ = 0;
  orders_ = 0;
  has_odd_key_ = false;
  return scanner->Object([&](const Token& key) { return ScanMember(key, scanner); });
}

bool Reader::ScanMember(const Token& key, Scanner* scanner) {
  static constexpr std::array<std::string_view, kKeys> kNames = {
      "ph", "name", "cat", "pid", "tid", "ts", "dur", "bind_id", "args"};
  const std::string_view name = key.Inside();
  has_odd_key_ = has_odd_key_ || key.is_escaped;
  for (size_t at = 0; at < kKeys; ++at) {
    if (name != kNames[at]) continue;
    if (at == kArgs) return ScanArguments(scanner);
    return scanner->Value(&keys_[at], 1);
  }
  Token ignored;
  return scanner->Value(&ignored, 1);
}

// The last ones of an event count, as the last value of each argument does.
bool Reader::ScanArguments(Scanner* scanner) {
  present_ = 0;
  orders_ = 0;
  if (*scanner->here() != '{') return scanner->Value(&keys_[kArgs], 1);
  return scanner->Object([&](const Token& key) {
    Token value;
    if (!scanner->Value(&value, 2)) return false;
    Keep(key, value);
    return true;
  });
}

void Reader::Keep(const Token& key, const Token& value) {
  has_odd_key_ = has_odd_key_ || key.is_escaped;
  const std::string_view name = key.Inside();
  for (const uint8_t at : buckets_[Bucket(name)]) {
    if (arguments_[at].key != name) continue;
    if (!Has(at)) order_[orders_++] = at;
    present_ |= uint64_t{1} << at;
    values_[at] = value;
  }
}

bool Reader::TakeEvent(Report* report) {
  const Token& phase = keys_[kPh];
  if (has_odd_key_ || phase.kind != Kind::kString || phase.is_escaped) return false;
  const std::string_view letter = phase.Inside();
  if (letter == "X") return TakeComplete(report);
  if (letter == "M" || letter == "B" || letter == "E") return false;
  // The caller counts the first one itself, so that kinds stand in the order of their appearance.
  if (!std::exchange(has_others_, true)) return false;
  ++report->others;
  return true;
}

bool Reader::TakeComplete(Report* report) {
  const Token& name = keys_[kName];
  const Token& category = keys_[kCat];
  if (name.kind != Kind::kString) return false;
  const std::string_view called = name.Inside();
  if (!called.empty() && called[0] == '\\') return false;
  if (!called.empty() && called[0] == '$') {
    if (!std::exchange(has_python_calls_, true)) return false;
    ++report->complete;
    ++report->python_calls;
    return true;
  }
  int64_t start, length;
  if (!Nanoseconds(keys_[kTs], &start) || !Nanoseconds(keys_[kDur], &length)) return false;
  if (category.kind == Kind::kString && category.is_escaped) return false;
  int64_t* const row = room_.row + report->rows * room_.columns;
  std::memcpy(row, room_.blank, static_cast<size_t>(room_.columns) * sizeof(*row));
  row[kProcess] = Label(Written::kId, keys_[kPid]);
  row[kThread] = Label(Written::kId, keys_[kTid]);
  row[kCategory] = Label(Written::kText, category);
  row[kEvent] = Label(Written::kText, name);
  row[kStartNs] = start;
  row[kEndNs] = start + length;
  if (!TakeArguments(row)) return false;
  if (IsOneOf(category, launch_categories_) && row[launch_place_] == room_.absent) {
    const Found found = Number(keys_[kBindId], &row[launch_place_]);
    if (found == Found::kUnsure) return false;
  }
  if (IsOneOf(category, call_categories_) && !TakeCall(report)) return false;
  ++report->rows;
  ++report->complete;
  return true;
}

bool Reader::TakeArguments(int64_t* row) {
  for (size_t at = 0; at < orders_; ++at) {
    const Argument& argument = arguments_[order_[at]];
    if (argument.number >= 0) {
      const Column& column = numbers_[static_cast<size_t>(argument.number)];
      if (!FirstNumber(column, &row[column.place])) return false;
    }
    if (argument.text >= 0) {
      const Column& column = texts_of_[static_cast<size_t>(argument.text)];
      if (!FirstText(column, &row[column.place])) return false;
    }
  }
  return true;
}

bool Reader::TakeCall(Report* report) {
  bool is_call = false;
  for (size_t at = 0; at < orders_; ++at) is_call |= arguments_[order_[at]].is_of_call;
  if (!is_call) return true;
  int64_t* const call = room_.call + report->calls * room_.call_columns;
  std::fill(call, call + room_.call_columns, 0);
  call[0] = report->rows;
  for (const Column& column : call_numbers_) {
    call[column.place] = room_.absent;
    if (!FirstNumber(column, &call[column.place])) return false;
  }
  for (const Column& column : call_texts_) {
    const size_t argument = column.arguments.front();
    if (Has(argument)) call[column.place] = Label(Written::kJson, values_[argument]);
  }
  for (const Column& column : messages_) {
    if (Has(column.arguments.front())) call[column.place] = Message(column);
  }
  ++report->calls;
  return true;
}

int64_t Reader::Message(const Column& column) {
  message_.assign(1, '{');
  for (const size_t argument : column.arguments) {
    if (!Has(argument)) continue;
    if (message_.size() > 1) message_ += ',';
    message_.append(1, '"').append(arguments_[argument].key).append("\":");
    message_.append(values_[argument].Raw());
  }
  message_ += '}';
  return texts_.Code(Written::kJson, message_);
}

bool Reader::IsOneOf(const Token& token, const std::vector<std::string>& words) const {
  return token.kind == Kind::kString &&
         std::find(words.begin(), words.end(), token.Inside()) != words.end();
}

// A whole number or a text of one, below 2^62. Unsure are ways of Python to write one that others
// lack, as "1_000", and bools, which are numbers to it.
Reader::Found Reader::Number(const Token& token, int64_t* value) const {
  constexpr size_t kDigits = 19;  // as many as fit into 64 bits
  if (token.kind == Kind::kBool) return Found::kUnsure;
  if (token.kind != Kind::kWhole && token.kind != Kind::kString) return Found::kNothing;
  std::string_view digits = token.kind == Kind::kWhole ? token.Raw() : token.Inside();
  const bool is_negative = !digits.empty() && digits[0] == '-';
  if (is_negative) digits.remove_prefix(1);
  if (token.is_escaped || !std::all_of(digits.begin(), digits.end(), IsDigit)) {
    const auto is_letter = [](char letter) { return (letter & 0x80) == 0 && !IsDigit(letter); };
    const bool is_none = std::all_of(digits.begin(), digits.end(), is_letter);
    return is_none && !token.is_escaped ? Found::kNothing : Found::kUnsure;
  }
  if (digits.empty()) return Found::kNothing;
  if (digits.size() > kDigits) return digits[0] == '0' ? Found::kUnsure : Found::kNothing;
  uint64_t sum = 0;
  for (const char digit : digits) sum = 10 * sum + static_cast<uint64_t>(digit - '0');
  if (sum >= static_cast<uint64_t>(kLargest)) return Found::kNothing;
  *value = is_negative ? -static_cast<int64_t>(sum) : static_cast<int64_t>(sum);
  return Found::kNumber;
}

// Leaves the value as it is where no argument tells one.
bool Reader::FirstNumber(const Column& column, int64_t* value) const {
  for (const size_t argument : column.arguments) {
    if (!Has(argument)) continue;
    const Found found = Number(values_[argument], value);
    if (found != Found::kNothing) return found == Found::kNumber;
  }
  return true;
}

// Fractions are texts to the twin.
bool Reader::FirstText(const Column& column, int64_t* code) {
  constexpr size_t kLongestEscape = 6;  // bytes that stand for one letter
  for (const size_t argument : column.arguments) {
    const Token& value = values_[argument];
    const bool is_string = value.kind == Kind::kString;
    if (!Has(argument) || !(is_string || value.kind == Kind::kFraction)) continue;
    if (is_string) {
      const std::string_view text = value.Inside();
      if (text.empty() || IsOneOf(value, ignored_)) continue;
      const auto may_be = [&](const std::string& word) {
        return text.size() <= kLongestEscape * word.size();
      };
      if (value.is_escaped && std::any_of(ignored_.begin(), ignored_.end(), may_be)) return false;
    }
    *code = Label(Written::kText, value);
    return true;
  }
  return true;
}

}  // namespace moeprof::chrome
