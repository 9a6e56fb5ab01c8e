// Question: which events stand on the lines of a plane, as columns?
//
// moeprof/ingest/xspace/python_events.py is the twin; moeprof/ingest/xspace/space.py says what the
// columns mean.
#pragma once

#include <cstdint>
#include <vector>

#include "xspace/heads.h"
#include "xspace/places.h"
#include "xspace/wire.h"

namespace moeprof::xspace {

// Stands in a column of whole numbers for an event that lacks the stat.
constexpr int64_t kAbsent = INT64_MIN;

// What to read and where to put it: all arrays are the caller's. The columns have room for every
// event of the lines that are not skipped.
struct Request {
  int64_t plane;
  int64_t is_mapped;  // whether the bytes are a map of a file, whose pages may be given back
  int64_t numbers_count;
  int64_t texts_count;
  const int32_t* number_of_stat;  // by place of the stat's name: the column, -1 for none
  const int32_t* text_of_stat;
  const uint8_t* skip_names;  // by place of the event's name; may be null
  const uint8_t* skip_lines;  // may be null
  int32_t* line;
  int32_t* name;
  int64_t* start_ns;
  int64_t* end_ns;
  int64_t* const* numbers;
  int32_t* const* texts;
  uint8_t* has_number;       // by column, zeroed: 1 if an event has the stat, else the
  uint8_t* has_text;         // column is left as it was
  int64_t* skipped;          // by event name, zeroed
  int64_t* damaged_of_line;  // damaged places by line, zeroed
};

// A damaged place of the line at that place.
struct LineDamage {
  int32_t line;
  Damage damage;
};

struct EventsResult {
  int64_t kept = 0;
  int64_t damaged = 0;
  std::vector<Span> strings;
  std::vector<LineDamage> damage;  // the first kMostListed
};

EventsResult ReadEvents(const uint8_t* data, const Plane& plane, const Request& request,
                        int threads);

}  // namespace moeprof::xspace
