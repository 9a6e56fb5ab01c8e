// Question: what does an XSpace hold besides events? Planes, lines and names, all as stretches of
// the file.
//
// Field numbers are those of tsl/profiler/protobuf/xplane.proto.
// moeprof/ingest/xspace/python_space.py is the twin.
#pragma once

#include <cstdint>
#include <vector>

#include "xspace/id_places.h"
#include "xspace/places.h"
#include "xspace/wire.h"

namespace moeprof::xspace {

// Events between two marks of a line, which one thread decodes at a time. Fuzz programs make it
// small, so that small inputs have several chunks.
#ifndef MOEPROF_XSPACE_CHUNK_EVENTS
#define MOEPROF_XSPACE_CHUNK_EVENTS (1 << 15)
#endif
constexpr int64_t kChunkEvents = MOEPROF_XSPACE_CHUNK_EVENTS;

struct Line {
  Span span;  // ends where its fields end or damage begins
  int64_t id = 0;
  Span name;
  int64_t timestamp_ns = 0;
  int64_t events = 0;
  std::vector<int64_t> marks;  // where event 1 * kChunkEvents, 2 * kChunkEvents, ... stand
  Damage damage;
};

// A name of events or stats; `content` is its whole metadata message.
struct Name {
  int64_t id = 0;
  Span name;
  Span content;
};

struct Names {
  std::vector<Name> list;
  IdPlaces places;
};

struct Plane {
  Span span;
  Span name;
  std::vector<Line> lines;
  Names event_names;
  Names stat_names;
  std::vector<Span> stats;
  Places damage;
};

// `number` is the field's: 2 errors, 3 warnings, 4 host names.
struct Text {
  int64_t number;
  Span content;
};

struct Heads {
  std::vector<Plane> planes;
  std::vector<Text> texts;
  Places damage;
};

Heads ReadHeads(const uint8_t* data, int64_t size, int threads);

}  // namespace moeprof::xspace
