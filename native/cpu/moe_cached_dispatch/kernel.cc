#include "cpu/moe_cached_dispatch/kernel.h"

#include <cstring>

#include "cpu/common/poison.h"

namespace moeprof {

void PullCachedRows(const MoeHandle& handle, int64_t row_bytes,
                    const std::vector<const uint8_t*>& sources, int64_t rank, uint8_t* recv_x,
                    bool poison) {
  int64_t row = 0;
  for (int64_t source = 0; source < handle.ranks; ++source) {
    for (; row < handle.EndRow(source, rank); ++row) {
      std::memcpy(recv_x + row * row_bytes, sources[source] + handle.src_idx[row] * row_bytes,
                  row_bytes);
    }
  }
  FillUnusedRows(recv_x + row * row_bytes, (handle.rows() - row) * row_bytes, poison);
}

}  // namespace moeprof
