// Question: how do heads and results reach a caller in another language? As tables of whole
// numbers, row by row; texts are stretches of the file, so nothing is copied.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "xspace/events.h"
#include "xspace/heads.h"

namespace moeprof::xspace {

// Numbered as `Table` in moeprof/ingest/xspace/native_library.py, which names the columns too.
enum TableNumber : int {
  kPlanes = 0,
  kLines = 1,
  kEventNames = 2,
  kStatNames = 3,
  kPlaneStats = 4,
  kTexts = 5,
  kDamage = 6,
  kStrings = 7,
  kCounts = 8,
  kTables = 9,
};

using Tables = std::array<std::vector<int64_t>, kTables>;

Tables HeadTables(const Heads& heads);
Tables EventTables(const EventsResult& result);

}  // namespace moeprof::xspace
