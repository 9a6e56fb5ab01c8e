// Question: what does one event say? Decodes events one by one into rows of the columns.
#pragma once

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
  Span span;          // of whole fields
  int64_t row = 0;    // of its first event
  int64_t room = 0;   // rows from there on, one per event
  int64_t blank = 0;  // rows whose stats were set to absent, those written included
  int64_t kept = 0;   // rows written from there on
  int64_t damaged = 0;
  Places damage;
  StringCodes strings;  // the codes in its rows refer to these
};

// One per thread.
class EventDecoder {
 public:
  EventDecoder(const uint8_t* data, const Plane& plane, const Request& request)
      : data_(data),
        plane_(plane),
        request_(request),
        references_(plane.stat_names),
        skipped_(plane.event_names.list.size()) {}

  void Decode(Chunk* chunk);
  // Events passed over so far, by name.
  const std::vector<int64_t>& skipped() const { return skipped_; }

 private:
  // The numbers of an event, its stats in `stats_`.
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

  void DecodeEvent(Span span, int64_t timestamp_ns, Chunk* chunk);
  // Sets the stats of the next rows to absent.
  void BlankRows(Chunk* chunk) const;
  void DecodeStat(Span span, int64_t row, Chunk* chunk);
  // Reads fields as profilers write them: in the order of their numbers, each once. False where
  // they are written otherwise or damaged.
  bool ReadUsualEvent(Span span, Event* event);
  bool ReadUsualStat(Span span, Stat* stat) const;
  // Reads any fields, and notes damage.
  bool ReadAnyEvent(Span span, Event* event, Chunk* chunk);
  bool ReadAnyStat(Span span, Stat* stat, Chunk* chunk) const;

  const uint8_t* data_;
  const Plane& plane_;
  const Request& request_;
  ReferenceCodes references_;
  std::vector<int64_t> skipped_;
  std::vector<Span> stats_;  // of the event at hand
};

}  // namespace moeprof::xspace
