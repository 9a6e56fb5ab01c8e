// Question: at which place of a plane's list of names does a metadata id stand?
//
// Profilers number names from 1, so nearly all ids index an array; the rest are searched in a
// sorted list, which no choice of ids makes slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace moeprof::xspace {

class IdPlaces {
 public:
  // Gives each distinct id a place, in order of first appearance.
  explicit IdPlaces(const std::vector<int64_t>& ids);
  IdPlaces() = default;

  // -1: no such id.
  int32_t Find(int64_t id) const {
    if (static_cast<uint64_t>(id) < dense_.size()) return dense_[static_cast<size_t>(id)];
    return sparse_.empty() ? -1 : FindSparse(id);
  }

  // Number of distinct ids.
  int32_t size() const { return size_; }

 private:
  int32_t FindSparse(int64_t id) const;

  std::vector<int32_t> dense_;
  std::vector<std::pair<int64_t, int32_t>> sparse_;
  int32_t size_ = 0;
};

}  // namespace moeprof::xspace
