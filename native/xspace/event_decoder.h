// Question: what does one event say? Decodes events one by one into rows of the columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xspace/events.h"
#include "xspace/string_codes.h"

namespace moeprof::xspace {

// Codes of the names that references stand for, looked up once per chunk and name.
class ReferenceCodes {
 public:
  explicit ReferenceCodes(const Names& names) : names_(names), known_(names.list.size()) {}

  // Forgets all codes, in constant time.
  void Reset() { ++chunk_; }
  // -1: the reference points at nothing.
  int32_t Code(int64_t id, StringCodes* strings) {
    const int32_t place = names_.places.Find(id);
    if (place < 0) return -1;
    Known& known = known_[static_cast<size_t>(place)];
    if (known.chunk != chunk_) {
      known = {chunk_, strings->Code(names_.list[static_cast<size_t>(place)].name)};
    }
    return known.code;
  }

 private:
  struct Known {
    int32_t chunk = -1;
    int32_t code = -1;
  };
  const Names& names_;
  std::vector<Known> known_;
  int32_t chunk_ = 0;
};

// What the decoding of one chunk of a line leaves besides its rows.
struct Chunk {
  explicit Chunk(const uint8_t* data) : strings(data) {}

  int32_t line = 0;
  Span span;         // of whole fields
  int64_t row = 0;   // of its first event
  int64_t room = 0;  // rows from there on, one per event
  int64_t kept = 0;  // rows written from there on
  int64_t damaged = 0;
  // Which columns of stats were written to; the rows of the others are as they were.
  std::vector<uint8_t> has_number, has_text;
  Places damage;
  StringCodes strings;  // the codes in its rows refer to these
};

// A column of one stat. Rows are written in rising order; those without a value are set to absent
// when a later one has one, so a row is written once and a column that no event has never.
template <typename Value>
class StatColumn {
 public:
  StatColumn(Value* values, Value absent) : values_(values), absent_(absent) {}

  void Begin(int64_t row) { begin_ = next_ = row; }
  void Set(int64_t row, Value value) {
    if (next_ < row) FillTo(row);
    values_[row] = value;
    next_ = row + 1;
  }
  // Completes the rows before `row`; false if none has a value.
  bool End(int64_t row) {
    if (next_ == begin_) return false;
    FillTo(row);
    return true;
  }

 private:
  void FillTo(int64_t row) { std::fill(values_ + next_, values_ + row, absent_); }

  Value* values_;
  Value absent_;
  int64_t begin_ = 0;
  int64_t next_ = 0;
};

// One per thread.
class EventDecoder {
 public:
  EventDecoder(const uint8_t* data, const Plane& plane, const Request& request);

  void Decode(Chunk* chunk);
  // Events passed over so far, by name.
  const std::vector<int64_t>& skipped() const { return skipped_; }

 private:
  struct Event {
    uint64_t id = 0;
    uint64_t offset_ps = 0;
    uint64_t duration_ps = 0;
  };
  // The one value of a stat, by the number of its field.
  struct Stat {
    uint64_t id = 0;
    uint64_t number = 0;
    uint64_t value = 0;
    Span content;
  };

  // Reads an event as profilers write it: fields in the order of their numbers, each once, stats
  // shorter than 128 bytes. False, and nothing is written, where it is written otherwise.
  bool DecodeUsual(Span span, Chunk* chunk);
  // Reads any event, and notes damage.
  void DecodeAny(Span span, Chunk* chunk);
  // The row of an event to keep; -1 where its name is skipped.
  int64_t AddRow(const Event& event, Chunk* chunk);
  void DecodeStat(Span span, int64_t row, Chunk* chunk);
  bool ReadUsualStat(Span span, Stat* stat) const;
  bool ReadAnyStat(Span span, Stat* stat, Chunk* chunk) const;

  const uint8_t* data_;
  const uint8_t* readable_ = nullptr;  // the end of the chunk at hand
  int64_t timestamp_ns_ = 0;           // of its line
  const Plane& plane_;
  const Request& request_;
  std::vector<StatColumn<int64_t>> numbers_;
  std::vector<StatColumn<int32_t>> texts_;
  ReferenceCodes references_;
  std::vector<int64_t> skipped_;
  std::vector<Span> stats_;  // of an unusual event
};

}  // namespace moeprof::xspace
