#include "xspace/heads.h"

#include <utility>

#include "xspace/workers.h"

namespace moeprof::xspace {
namespace {

void ReadLine(const uint8_t* data, Line* line) {
  Fields fields(data, line->span);
  Field field;
  int64_t at = line->span.begin;
  for (; fields.Next(&field); at = fields.position()) {
    if (field.Is(4, kBytes)) {
      if (line->events > 0 && line->events % kChunkEvents == 0) line->marks.push_back(at);
      ++line->events;
    } else if (field.Is(2, kBytes)) {
      line->name = field.content;
    } else if (field.Is(1, kVarint)) {
      line->id = field.Signed();
    } else if (field.Is(3, kVarint)) {
      line->timestamp_ns = field.Signed();
    }
  }
  line->damage = fields.damage();
  line->span.end = at;
}

// A map entry: its key, and where its value stands.
Name ReadEntry(const uint8_t* data, Span span, Places* damage) {
  Name name;
  name.content = {span.begin, span.begin};
  Fields fields(data, span);
  Field field;
  while (fields.Next(&field)) {
    if (field.Is(1, kVarint)) {
      name.id = field.Signed();
    } else if (field.Is(2, kBytes)) {
      name.content = field.content;
    }
  }
  damage->AddEnd(fields);
  return name;
}

// Field 2 of event or stat metadata.
Span ReadName(const uint8_t* data, Span content, Places* damage) {
  Span name;
  Fields fields(data, content);
  Field field;
  while (fields.Next(&field)) {
    if (field.Is(2, kBytes)) name = field.content;
  }
  damage->AddEnd(fields);
  return name;
}

// A map's values by key: of a key that comes twice the last value, in the first one's place.
Names ReadNames(const uint8_t* data, const std::vector<Span>& entries, Places* damage) {
  std::vector<Name> all;
  std::vector<int64_t> ids;
  all.reserve(entries.size());
  ids.reserve(entries.size());
  for (const Span& entry : entries) {
    all.push_back(ReadEntry(data, entry, damage));
    ids.push_back(all.back().id);
  }
  Names names;
  names.places = IdPlaces(ids);
  names.list.resize(static_cast<size_t>(names.places.size()));
  for (const Name& name : all) names.list[static_cast<size_t>(names.places.Find(name.id))] = name;
  for (Name& name : names.list) name.name = ReadName(data, name.content, damage);
  return names;
}

// Where the parts of a plane stand.
struct PlaneParts {
  std::vector<Span> event_names;
  std::vector<Span> stat_names;
};

void AddPart(const Field& field, Plane* plane, PlaneParts* parts) {
  switch (field.number) {
    case 2:
      plane->name = field.content;
      break;
    case 3:
      plane->lines.emplace_back();
      plane->lines.back().span = field.content;
      break;
    case 4:
      parts->event_names.push_back(field.content);
      break;
    case 5:
      parts->stat_names.push_back(field.content);
      break;
    case 6:
      plane->stats.push_back(field.content);
      break;
  }
}

PlaneParts ReadParts(const uint8_t* data, Plane* plane) {
  PlaneParts parts;
  Fields fields(data, plane->span);
  Field field;
  while (fields.Next(&field)) {
    if (field.kind == kBytes) AddPart(field, plane, &parts);
  }
  plane->damage.AddEnd(fields);
  if (fields.cut() && field.number == 3) AddPart(field, plane, &parts);
  return parts;
}

void ReadSpace(const uint8_t* data, int64_t size, Heads* heads) {
  const auto add_plane = [heads](Span span) {
    heads->planes.emplace_back();
    heads->planes.back().span = span;
  };
  Fields fields(data, {0, size});
  Field field;
  while (fields.Next(&field)) {
    if (field.kind != kBytes) continue;
    if (field.number == 1) add_plane(field.content);
    if (field.number >= 2 && field.number <= 4) {
      heads->texts.push_back({static_cast<int64_t>(field.number), field.content});
    }
  }
  heads->damage.AddEnd(fields);
  if (fields.cut() && field.number == 1) add_plane(field.content);
}

}  // namespace

Heads ReadHeads(const uint8_t* data, int64_t size, int threads) {
  Heads heads;
  ReadSpace(data, size, &heads);
  std::vector<PlaneParts> parts(heads.planes.size());
  ShareTasks(threads, parts.size(),
             [&](int, size_t at) { parts[at] = ReadParts(data, &heads.planes[at]); });
  std::vector<Line*> lines;
  for (Plane& plane : heads.planes) {
    for (Line& line : plane.lines) lines.push_back(&line);
  }
  ShareTasks(threads, lines.size(), [&](int, size_t at) { ReadLine(data, lines[at]); });
  ShareTasks(threads, parts.size(), [&](int, size_t at) {
    Plane& plane = heads.planes[at];
    for (const Line& line : plane.lines) {
      if (line.damage.fault != Fault::kNone) plane.damage.Add(line.damage);
    }
    plane.event_names = ReadNames(data, parts[at].event_names, &plane.damage);
    plane.stat_names = ReadNames(data, parts[at].stat_names, &plane.damage);
  });
  return heads;
}

}  // namespace moeprof::xspace
