// Question: which rows do the events of a JSON trace make?
//
// moeprof/ingest/chrome_json/gathered.py is the twin. It says which columns there are and what
// tells them, and takes whole each event that is not decided here: those that are no complete ones,
// odd ways to write a number, bytes that are no UTF-8. Text that is no JSON is left to the caller
// where it begins.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chrome_json/scanner.h"
#include "chrome_json/texts.h"

namespace moeprof::chrome {

// What a text of the description stands for; numbered as `Role` in gathered.py.
enum class Role : int32_t {
  kNumber = 0,      // an argument that tells a column, a number; the first that does so counts
  kText = 1,        // the same, a text
  kCallNumber = 2,  // an argument of a call, a number
  kCallText = 3,    // the same, any JSON
  kMessage = 4,     // an argument of a message; all of them make one JSON if the first is there
  kCalls = 5,       // a category of events that may be calls
  kLaunch = 6,      // a category whose events tell a number as their `bind_id` too
  kIgnored = 7,     // a text that tells nothing
};

// Why reading stopped; numbered as `Stop` in native_elements.py.
enum class Stop : int32_t {
  kMore = 1,   // the text ends, maybe in an event
  kFull = 2,   // no room for another row
  kWhole = 3,  // the event up to `end` is not decided here
  kOther = 4,  // what follows is no event, or no JSON
};

// What one reading made; `_Report` in native_elements.py.
struct Report {
  int64_t at = 0;   // where reading stopped
  int64_t end = 0;  // of the event there
  int64_t rows = 0;
  int64_t calls = 0;
  int64_t texts = 0;         // in all
  int64_t complete = 0;      // events, of which all but Python calls have a row
  int64_t python_calls = 0;  // passed over
  int64_t others = 0;        // of other phases, passed over
};

// Where rows go: the caller's memory, row by row; `_Room` in native_elements.py. Labels stand in
// them as codes of the texts.
struct Room {
  int64_t rows = 0;  // how many there is room for, and as many calls
  int64_t columns = 0;
  int64_t call_columns = 0;
  const int64_t* blank = nullptr;  // a row of an event without arguments
  int64_t absent = 0;              // the number of a call that lacks it
  int64_t* row = nullptr;
  int64_t* call = nullptr;
};

class Reader {
 public:
  explicit Reader(const Room& room) : room_(room) {}

  // Adds to the description. False where there are more arguments than one word has bits.
  bool Describe(Role role, int64_t place, std::string_view text);

  // Reads events of `traceEvents` from `begin` on. Rows start at the top of the room again.
  Stop Read(const uint8_t* data, int64_t begin, int64_t size, Report* report) {
    *report = Report();
    const Stop stop = ReadEvents(data, begin, size, report);
    report->texts = texts_.count();
    return stop;
  }

  const Texts& texts() const { return texts_; }

 private:
  // An argument that is asked for, by the column that it tells.
  struct Argument {
    std::string key;
    int64_t number = -1;
    int64_t text = -1;
    bool is_of_call = false;
  };
  // What tells a column, in order of precedence.
  struct Column {
    int64_t place = 0;
    std::vector<size_t> arguments;
  };
  enum Key : size_t { kPh, kName, kCat, kPid, kTid, kTs, kDur, kBindId, kArgs, kKeys };
  enum class Found : uint8_t { kNumber, kNothing, kUnsure };
  static constexpr size_t kMost = 64;

  Stop ReadEvents(const uint8_t* data, int64_t begin, int64_t size, Report* report);

  size_t ArgumentOf(std::string_view key);
  std::vector<Column>* ColumnsOf(Role role);
  int64_t AddArgument(Role role, int64_t place, std::string_view text);

  bool ScanEvent(Scanner* scanner);
  bool ScanMember(const Token& key, Scanner* scanner);
  bool ScanArguments(Scanner* scanner);
  void Keep(const Token& key, const Token& value);
  bool Has(size_t argument) const { return (present_ >> argument & 1) != 0; }

  // These are false where the event is not decided here.
  bool TakeEvent(Report* report);
  bool TakeComplete(Report* report);
  bool TakeArguments(int64_t* row);
  bool TakeCall(Report* report);
  bool IsOneOf(const Token& token, const std::vector<std::string>& words) const;

  Found Number(const Token& token, int64_t* value) const;
  bool FirstNumber(const Column& column, int64_t* value) const;
  bool FirstText(const Column& column, int64_t* code);
  int64_t Label(Written how, const Token& token) {
    return token.kind == Kind::kAbsent ? 0 : texts_.Code(how, token.Raw());
  }
  int64_t Message(const Column& column);

  Room room_;
  Texts texts_;
  std::vector<Argument> arguments_;
  std::array<std::vector<uint8_t>, 256> buckets_;  // places of arguments by a sum of their key
  std::vector<Column> numbers_, texts_of_, call_numbers_, call_texts_, messages_;
  std::vector<std::string> call_categories_, launch_categories_, ignored_;
  int64_t launch_place_ = 0;
  bool has_others_ = false, has_python_calls_ = false;

  // Of the event at hand.
  std::array<Token, kKeys> keys_;
  std::array<Token, kMost> values_;
  std::array<uint8_t, kMost> order_;  // of arguments by their first appearance
  size_t orders_ = 0;
  uint64_t present_ = 0;
  bool has_odd_key_ = false;
  std::string message_;
};

}  // namespace moeprof::chrome
