#include "xspace/tables.h"

#include <initializer_list>

namespace moeprof::xspace {
namespace {

void AddRow(std::vector<int64_t>* table, std::initializer_list<int64_t> row) {
  table->insert(table->end(), row);
}

void AddDamage(int64_t part, const Damage& damage, Tables* tables) {
  AddRow(&(*tables)[kDamage], {part, damage.position, static_cast<int64_t>(damage.fault),
                               static_cast<int64_t>(damage.number), damage.kind});
}

void AddNames(const Names& names, std::vector<int64_t>* table) {
  for (const Name& name : names.list) {
    AddRow(table, {name.id, name.name.begin, name.name.end, name.content.begin, name.content.end});
  }
}

int64_t Size(const std::vector<Name>& names) { return static_cast<int64_t>(names.size()); }

void AddPlane(int64_t index, const Plane& plane, Tables* tables) {
  AddRow(&(*tables)[kPlanes],
         {plane.name.begin, plane.name.end, static_cast<int64_t>(plane.lines.size()),
          Size(plane.event_names.list), Size(plane.stat_names.list),
          static_cast<int64_t>(plane.stats.size()), plane.damage.count});
  for (const Line& line : plane.lines) {
    AddRow(&(*tables)[kLines],
           {line.id, line.name.begin, line.name.end, line.timestamp_ns, line.events});
  }
  AddNames(plane.event_names, &(*tables)[kEventNames]);
  AddNames(plane.stat_names, &(*tables)[kStatNames]);
  for (const Span& stat : plane.stats) AddRow(&(*tables)[kPlaneStats], {stat.begin, stat.end});
  for (const Damage& damage : plane.damage.first) AddDamage(index, damage, tables);
}

}  // namespace

Tables HeadTables(const Heads& heads) {
  Tables tables;
  for (const Damage& damage : heads.damage.first) AddDamage(-1, damage, &tables);
  for (size_t at = 0; at < heads.planes.size(); ++at) {
    AddPlane(static_cast<int64_t>(at), heads.planes[at], &tables);
  }
  for (const Text& text : heads.texts) {
    AddRow(&tables[kTexts], {text.number, text.content.begin, text.content.end});
  }
  return tables;
}

Tables EventTables(const EventsResult& result) {
  Tables tables;
  AddRow(&tables[kCounts], {result.kept, result.damaged});
  for (const Span& text : result.strings) AddRow(&tables[kStrings], {text.begin, text.end});
  for (const LineDamage& place : result.damage) AddDamage(place.line, place.damage, &tables);
  return tables;
}

}  // namespace moeprof::xspace
