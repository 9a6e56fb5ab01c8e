// Question: how does a rank bring the rows of its tokens back and add them up?
//
//   rank 0  x [Rw, hidden] ──┐
//   rank 1  x [Rw, hidden] ──┤   out[t] = sum over ranks d with in_rank[t, d] of
//     ...                    ├──>          x_d[first row of me on d + start of channel + send_head]
//   rank EP-1              ──┘
//
// Who computes what: each rank pulls the rows of its own tokens from every rank's memory. Sums are
// in float32, in rank order, and rounded once, so the result does not depend on who came first. A
// token with a single row is copied. Unused rows are never read.
// Limit: memory bandwidth; (rows sent + T) * row_bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/exchange/handle.h"

namespace moeprof {

// What a rank lets the others read.
struct CombineSource {
  const void* x;              // T [T * EP, hidden]
  const float* topk_weights;  // [T * EP, K]
};

struct CombineTarget {
  void* x;              // T [T, hidden]
  float* topk_weights;  // [T, K]
};

// T is float, BFloat16 or Float16. Fills the target of `rank`, whose handle this is. Throws
// std::bad_alloc for want of scratch (2 * hidden floats).
template <typename T>
void SumRows(const MoeHandle& handle, int64_t hidden, int64_t top_k,
             const std::vector<CombineSource>& sources, int64_t rank, const CombineTarget& target);

}  // namespace moeprof
