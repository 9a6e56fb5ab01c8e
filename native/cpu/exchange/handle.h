// Question: where do the rows of an earlier dispatch lie, as its handle tells?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moeprof {

// The parts of a dispatch handle that place rows; T tokens per rank, EP ranks, C channels.
struct MoeHandle {
  const int32_t* rank_prefix;     // [EP, EP]
  const int32_t* channel_prefix;  // [EP, C]
  const int32_t* src_idx;         // [T * EP]
  const bool* in_rank;            // [T, EP]
  const int32_t* send_head;       // [T, EP]
  int64_t tokens, ranks, channels;

  int64_t rows() const { return tokens * ranks; }

  // First row on `destination` of the rows that `source` sent.
  int64_t FirstRow(int64_t source, int64_t destination) const {
    return source == 0 ? 0 : rank_prefix[(source - 1) * ranks + destination];
  }
  int64_t EndRow(int64_t source, int64_t destination) const {
    return rank_prefix[source * ranks + destination];
  }

  // Row on `destination` of a token that rank `source`, whose handle this is, sent there.
  int64_t RowOf(int64_t source, int64_t token, int64_t destination) const {
    const int64_t channel = token / ((tokens + channels - 1) / channels);
    const int64_t start = channel == 0 ? 0 : channel_prefix[destination * channels + channel - 1];
    return FirstRow(source, destination) + start + send_head[token * ranks + destination];
  }
};

// The complaint where this handle of `rank` would place rows outside its buffers: the one it
// received (for a combine: the ones it sent).
std::optional<std::string> CheckReceived(const MoeHandle& handle, int64_t rank);
std::optional<std::string> CheckSent(const MoeHandle& handle, int64_t rank);

}  // namespace moeprof
