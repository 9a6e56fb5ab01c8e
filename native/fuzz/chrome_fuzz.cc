// Question: do any bytes make the reader of JSON traces crash, read out of bounds, hang or hand out
// what is not there?
//
// One input is read as the Python side reads a file from the list of events on: at once, and in two
// pieces, which must give the same rows. What the reader leaves is passed over here: the event
// where it is whole, else one byte. Each text is read from a copy of just its length, so that a
// look beyond it is seen.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "chrome_json/reader.h"

namespace {

using namespace moeprof::chrome;  // NOLINT: the whole program is about it

constexpr int64_t kRows = 3;
constexpr int64_t kFixed = 6;  // columns that are not described
constexpr int64_t kColumns = kFixed + 4;
constexpr int64_t kCallColumns = 5;
constexpr int64_t kAbsent = -1;

void Check(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", claim);
  std::abort();
}

struct Result {
  std::vector<int64_t> rows, calls, left, counts, texts;
  std::vector<char> content;

  bool operator==(const Result& other) const {
    return rows == other.rows && calls == other.calls && left == other.left &&
           counts == other.counts && texts == other.texts && content == other.content;
  }
};

// Some of what is asked for, each role at least once.
void Describe(Reader* reader) {
  const auto add = [&](Role role, int64_t place, const char* text) {
    Check(reader->Describe(role, place, text), "the description fits");
  };
  add(Role::kNumber, kFixed, "correlation_id");
  add(Role::kNumber, kFixed, "correlation");
  add(Role::kNumber, kFixed + 1, "run_id");
  add(Role::kText, kFixed + 2, "hlo_op");
  add(Role::kText, kFixed + 3, "name");
  add(Role::kText, kFixed + 3, "long_name");
  add(Role::kCallNumber, 1, "Sequence number");
  add(Role::kCallText, 2, "Input Dims");
  add(Role::kCallText, 3, "Concrete Inputs");
  add(Role::kMessage, 4, "Collective name");
  add(Role::kMessage, 4, "dtype");
  add(Role::kCalls, 0, "cpu_op");
  add(Role::kCalls, 0, "kernel");
  add(Role::kLaunch, kFixed, "gpu_launch");
  add(Role::kIgnored, 0, "XlaModule:");
}

class Reading {
 public:
  Reading() : reader_(MakeRoom()) { Describe(&reader_); }

  // Reads [begin, size) of the input and returns where it stopped for want of more.
  int64_t Feed(const uint8_t* data, int64_t begin, int64_t size, bool is_last) {
    const auto count = static_cast<size_t>(size - begin);
    const std::unique_ptr<uint8_t[]> copy(new uint8_t[count]);
    std::copy(data + begin, data + size, copy.get());
    Report report;
    for (int64_t at = 0;;) {
      const Stop stop = reader_.Read(copy.get(), at, size - begin, &report);
      Check(report.at >= at && report.at <= size - begin, "reading goes on");
      Take(report);
      at = report.at;
      if (stop == Stop::kMore && (!is_last || at == size - begin)) return begin + at;
      if (stop == Stop::kFull) {
        Check(report.rows == kRows, "room ends where it is used");
        continue;
      }
      const int64_t after = stop == Stop::kWhole ? report.end : at + 1;
      Check(after > at && after <= size - begin, "an event has an end");
      for (const int64_t value : {begin + at, begin + after}) result_.left.push_back(value);
      at = after;
    }
  }

  Result Finish() {
    result_.texts = reader_.texts().table();
    result_.content = reader_.texts().content();
    return result_;
  }

 private:
  Room MakeRoom() {
    blank_.resize(kColumns, 0);
    row_.resize(kRows * kColumns);
    call_.resize(kRows * kCallColumns);
    return {kRows, kColumns, kCallColumns, blank_.data(), kAbsent, row_.data(), call_.data()};
  }

  void Take(const Report& report) {
    Check(report.rows <= kRows && report.calls <= report.rows, "rows fit into the room");
    const int64_t before = static_cast<int64_t>(result_.rows.size()) / kColumns;
    for (int64_t at = 0; at < report.rows * kColumns; ++at) {
      const int64_t value = row_[static_cast<size_t>(at)], place = at % kColumns;
      if (place < 4 || place >= kFixed + 2) {
        Check(value >= 0 && value <= reader_.texts().count(), "every code has its text");
      }
      result_.rows.push_back(value);
    }
    for (int64_t at = 0; at < report.calls * kCallColumns; ++at) {
      const int64_t value = call_[static_cast<size_t>(at)], place = at % kCallColumns;
      const int64_t most = place == 0 ? report.rows - 1 : reader_.texts().count();
      if (place != 1) Check(value >= 0 && value <= most, "every call has its row and texts");
      result_.calls.push_back(place == 0 ? before + value : value);
    }
    result_.counts.resize(3);
    result_.counts[0] += report.complete;
    result_.counts[1] += report.python_calls;
    result_.counts[2] += report.others;
  }

  std::vector<int64_t> blank_, row_, call_;
  Result result_;
  Reader reader_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto whole = static_cast<int64_t>(size);
  const auto list = std::find(data, data + size, '[') - data;  // its caller reads up to there
  const int64_t begin = std::min<int64_t>(list + 1, whole);
  Reading at_once;
  at_once.Feed(data, begin, whole, true);
  const Result expected = at_once.Finish();
  const int64_t step = 1 + whole / 8;
  for (int64_t cut = begin; cut <= whole; cut += step) {
    Reading pieces;
    const int64_t at = pieces.Feed(data, begin, cut, false);
    pieces.Feed(data, at, whole, true);
    Check(pieces.Finish() == expected, "rows do not depend on where the text is cut");
  }
  return 0;
}
