// Question: how does a rank fetch new rows along the routes of an earlier dispatch?
//
// The same layout as moe_dispatch_kernel.h, but the routes come from the handle: row i of source s
// is its token src_idx[i]. The backward pass of a combine.
// Limit: memory bandwidth; 2 * rows received * row_bytes, and row_bytes for every unused row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/exchange/handle.h"

namespace moeprof {

// Fills recv_x [T * EP, row_bytes] of `rank` from every rank's x [T, row_bytes]. Unused rows become
// zero, or NaN where `poison`.
void PullCachedRows(const MoeHandle& handle, int64_t row_bytes,
                    const std::vector<const uint8_t*>& sources, int64_t rank, uint8_t* recv_x,
                    bool poison);

}  // namespace moeprof
