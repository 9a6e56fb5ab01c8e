#include "xspace/id_places.h"

#include <algorithm>

namespace moeprof::xspace {

IdPlaces::IdPlaces(const std::vector<int64_t>& ids) {
  // Twice the number of ids bounds the array whatever the ids are.
  const uint64_t limit = ids.empty() ? 0 : 2 * ids.size() + 1024;
  uint64_t dense_size = 0;
  for (const int64_t id : ids) {
    if (static_cast<uint64_t>(id) < limit) {
      dense_size = std::max(dense_size, static_cast<uint64_t>(id) + 1);
    } else {
      sparse_.emplace_back(id, -1);
    }
  }
  dense_.assign(dense_size, -1);
  std::sort(sparse_.begin(), sparse_.end());
  sparse_.erase(std::unique(sparse_.begin(), sparse_.end()), sparse_.end());
  for (const int64_t id : ids) {
    int32_t* place;
    if (static_cast<uint64_t>(id) < dense_size) {
      place = &dense_[static_cast<size_t>(id)];
    } else {
      const auto found = std::lower_bound(sparse_.begin(), sparse_.end(), std::pair(id, INT32_MIN));
      place = &found->second;
    }
    if (*place < 0) *place = size_++;
  }
}

int32_t IdPlaces::FindSparse(int64_t id) const {
  const auto found = std::lower_bound(sparse_.begin(), sparse_.end(), std::pair(id, INT32_MIN));
  return found != sparse_.end() && found->first == id ? found->second : -1;
}

}  // namespace moeprof::xspace
