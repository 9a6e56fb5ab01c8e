// Question: in how many places is a part of the file damaged, and where are the first of them?
#pragma once

#include <cstdint>
#include <vector>

#include "xspace/wire.h"

namespace moeprof::xspace {

constexpr size_t kMostListed = 64;  // as MOST_LISTED in moeprof/ingest/xspace/space.py

struct Places {
  int64_t count = 0;
  std::vector<Damage> first;

  void Add(const Damage& damage) {
    ++count;
    if (first.size() < kMostListed) first.push_back(damage);
  }

  // Notes the end of a walk over fields, where damage ended it.
  void AddEnd(const Fields& fields) {
    if (fields.damaged()) Add(fields.damage());
  }
};

}  // namespace moeprof::xspace
