#include "cpu/exchange/handle.h"

namespace moeprof {

std::optional<std::string> CheckReceived(const MoeHandle& handle, int64_t rank) {
  int64_t row = 0;
  for (int64_t source = 0; source < handle.ranks; ++source) {
    const int64_t end = handle.EndRow(source, rank);
    if (end < row || end > handle.rows()) {
      return "handle: rank_prefix_matrix ends the rows from rank " + std::to_string(source) +
             " at " + std::to_string(end) + ", outside [" + std::to_string(row) + ", " +
             std::to_string(handle.rows()) + "]";
    }
    for (; row < end; ++row) {
      if (handle.src_idx[row] >= 0 && handle.src_idx[row] < handle.tokens) continue;
      return "handle: recv_src_idx of row " + std::to_string(row) + " is " +
             std::to_string(handle.src_idx[row]) + ", outside [0, " +
             std::to_string(handle.tokens) + ")";
    }
  }
  return std::nullopt;
}

std::optional<std::string> CheckSent(const MoeHandle& handle, int64_t rank) {
  for (int64_t token = 0; token < handle.tokens; ++token) {
    for (int64_t destination = 0; destination < handle.ranks; ++destination) {
      if (!handle.in_rank[token * handle.ranks + destination]) continue;
      const int64_t row = handle.RowOf(rank, token, destination);
      if (row >= 0 && row < handle.rows()) continue;
      return "handle: token " + std::to_string(token) + " lies at row " + std::to_string(row) +
             " of rank " + std::to_string(destination) + ", outside [0, " +
             std::to_string(handle.rows()) + ")";
    }
  }
  return std::nullopt;
}

}  // namespace moeprof
