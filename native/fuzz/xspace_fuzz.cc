// Question: do any bytes make the trace reader crash, read out of bounds, hang or ask for memory
// that the file cannot justify?
//
// One input is read as the Python side reads a file: heads, then the events of every plane, with
// and without skipping. Of every fourth length it is read on three threads too, which must agree:
// threads take much longer to start than a small file to read.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "xspace/events.h"
#include "xspace/heads.h"
#include "xspace/tables.h"

namespace {

using namespace moeprof::xspace;  // NOLINT: the whole program is about it

constexpr size_t kColumns = 3;

struct Columns {
  std::vector<int32_t> line, name;
  std::vector<int64_t> start_ns, end_ns, skipped, damaged_of_line;
  std::vector<std::vector<int64_t>> numbers;
  std::vector<std::vector<int32_t>> texts;
  std::vector<uint8_t> has_number, has_text;
  Tables tables;

  bool operator==(const Columns& other) const {
    return line == other.line && name == other.name && start_ns == other.start_ns &&
           end_ns == other.end_ns && skipped == other.skipped &&
           damaged_of_line == other.damaged_of_line && numbers == other.numbers &&
           texts == other.texts && has_number == other.has_number && has_text == other.has_text &&
           tables == other.tables;
  }
};

void Check(bool holds, const char* claim) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", claim);
  std::abort();
}

// Every other stat as a number, every third as a text, spread over a few columns.
std::vector<int32_t> ColumnOfStat(size_t stats, size_t step) {
  std::vector<int32_t> columns(stats, -1);
  for (size_t at = 0; at < stats; at += step) columns[at] = static_cast<int32_t>(at % kColumns);
  return columns;
}

Columns Read(const uint8_t* data, const Plane& plane, bool skips, int threads) {
  size_t room = 0;
  std::vector<uint8_t> skip_lines(plane.lines.size()), skip_names;
  for (size_t at = 0; at < plane.lines.size(); ++at) {
    skip_lines[at] = skips && at % 3 == 1;
    if (!skip_lines[at]) room += static_cast<size_t>(plane.lines[at].events);
  }
  for (size_t at = 0; at < plane.event_names.list.size(); ++at) skip_names.push_back(at % 2);
  const auto number_of_stat = ColumnOfStat(plane.stat_names.list.size(), 2);
  const auto text_of_stat = ColumnOfStat(plane.stat_names.list.size(), 3);
  Columns columns;
  columns.line.resize(room), columns.name.resize(room);
  columns.start_ns.resize(room), columns.end_ns.resize(room);
  columns.numbers.assign(kColumns, std::vector<int64_t>(room));
  columns.texts.assign(kColumns, std::vector<int32_t>(room));
  columns.has_number.resize(kColumns), columns.has_text.resize(kColumns);
  columns.skipped.resize(plane.event_names.list.size());
  columns.damaged_of_line.resize(plane.lines.size());
  std::vector<int64_t*> numbers;
  std::vector<int32_t*> texts;
  for (auto& column : columns.numbers) numbers.push_back(column.data());
  for (auto& column : columns.texts) texts.push_back(column.data());
  const Request request{0,
                        0,
                        kColumns,
                        kColumns,
                        number_of_stat.data(),
                        text_of_stat.data(),
                        skips ? skip_names.data() : nullptr,
                        skips ? skip_lines.data() : nullptr,
                        columns.line.data(),
                        columns.name.data(),
                        columns.start_ns.data(),
                        columns.end_ns.data(),
                        numbers.data(),
                        texts.data(),
                        columns.has_number.data(),
                        columns.has_text.data(),
                        columns.skipped.data(),
                        columns.damaged_of_line.data()};
  const EventsResult result = ReadEvents(data, plane, request, threads);
  columns.tables = EventTables(result);
  const size_t kept = static_cast<size_t>(result.kept);
  Check(kept <= room, "no more events are kept than the heads counted");
  columns.line.resize(kept), columns.name.resize(kept);
  columns.start_ns.resize(kept), columns.end_ns.resize(kept);
  for (size_t at = 0; at < kColumns; ++at) {  // a column that no event has was not written to
    columns.numbers[at].resize(columns.has_number[at] ? kept : 0);
    columns.texts[at].resize(columns.has_text[at] ? kept : 0);
  }
  for (const auto& column : columns.texts) {
    for (const int32_t code : column) {
      Check(code < static_cast<int64_t>(result.strings.size()), "every code has its text");
    }
  }
  return columns;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const bool shares = size % 4 == 0;
  const Heads heads = ReadHeads(data, static_cast<int64_t>(size), 1);
  const Tables tables = HeadTables(heads);
  if (shares) {
    Check(tables == HeadTables(ReadHeads(data, static_cast<int64_t>(size), 3)),
          "heads do not depend on the number of threads");
  }
  for (const Plane& plane : heads.planes) {
    for (const bool skips : {false, true}) {
      const Columns columns = Read(data, plane, skips, 1);
      if (!shares) continue;
      Check(columns == Read(data, plane, skips, 3),
            "events do not depend on the number of threads");
    }
  }
  return 0;
}
