#include "stress/gpu_exchange_compare.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace moeprof::stress {
namespace {

constexpr size_t kMostRanges = 12;

std::string Hex(const uint8_t* bytes, size_t count) {
  std::string text = "0x";
  char digits[3];
  for (size_t i = count; i-- > 0;) {
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

// "0-3, 7, 12-40" of the rows that are marked.
std::string Ranges(const std::vector<bool>& is_wrong) {
  std::string text;
  size_t ranges = 0;
  for (size_t row = 0; row < is_wrong.size(); ++row) {
    if (!is_wrong[row]) continue;
    size_t last = row;
    while (last + 1 < is_wrong.size() && is_wrong[last + 1]) ++last;
    if (++ranges > kMostRanges) return text + ", ...";
    text += (text.empty() ? "" : ", ") + std::to_string(row) +
            (last > row ? "-" + std::to_string(last) : "");
    row = last;
  }
  return text;
}

// Values of `width` bytes, `columns` to a row.
std::string DifferencesOf(const char* name, const void* found, const void* expected, size_t bytes,
                          size_t width, size_t columns) {
  if (bytes == 0 || std::memcmp(found, expected, bytes) == 0) return "";
  const auto* const a = static_cast<const uint8_t*>(found);
  const auto* const b = static_cast<const uint8_t*>(expected);
  const size_t count = bytes / width;
  std::vector<bool> is_wrong((count + columns - 1) / columns);
  size_t wrong = 0, first = count;
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * width, b + i * width, width) == 0) continue;
    if (wrong++ == 0) first = i;
    is_wrong[i / columns] = true;
  }
  return std::string("    ") + name + ": " + std::to_string(wrong) + " of " +
         std::to_string(count) + " values differ, first at [" + std::to_string(first / columns) +
         ", " + std::to_string(first % columns) + "]: found " + Hex(a + first * width, width) +
         ", expected " + Hex(b + first * width, width) + "; rows " + Ranges(is_wrong) + "\n";
}

template <typename T>
std::string DifferencesOf(const char* name, const std::vector<T>& found,
                          const std::vector<T>& expected, size_t columns) {
  if (found.size() != expected.size()) return std::string("    ") + name + ": another size\n";
  return DifferencesOf(name, found.data(), expected.data(), found.size() * sizeof(T), sizeof(T),
                       std::max<size_t>(1, columns));
}

std::string RowDifferences(const Case& round, const char* name, const std::vector<uint8_t>& found,
                           const std::vector<uint8_t>& expected) {
  if (found.size() != expected.size()) return std::string("    ") + name + ": another size\n";
  return DifferencesOf(name, found.data(), expected.data(), found.size(), 2,
                       static_cast<size_t>(round.row_bytes) / 2);
}

template <typename T>
void SetAllBits(std::vector<T>& values) {
  if (!values.empty()) std::memset(values.data(), 0xFF, values.size() * sizeof(T));
}

}  // namespace

std::string Differences(const Case& round, const Results& found, const Results& expected) {
  const size_t ranks = round.ranks, top_k = round.top_k;
  return DifferencesOf("rank_prefix_matrix", found.rank_prefix, expected.rank_prefix, ranks) +
         DifferencesOf("recv_channel_prefix_matrix", found.recv_channel_prefix,
                       expected.recv_channel_prefix, round.channels) +
         DifferencesOf("recv_src_idx", found.recv_src_idx, expected.recv_src_idx, 1) +
         DifferencesOf("recv_topk_idx", found.recv_topk_idx, expected.recv_topk_idx, top_k) +
         DifferencesOf("recv_topk_weights", found.recv_topk_weights, expected.recv_topk_weights,
                       top_k) +
         DifferencesOf("recv_scales", found.recv_scales, expected.recv_scales, round.scales) +
         RowDifferences(round, "recv_x (16-bit words)", found.recv_x, expected.recv_x) +
         RowDifferences(round, "combined x (16-bit words)", found.combined_x, expected.combined_x) +
         DifferencesOf("combined weights", found.combined_weights, expected.combined_weights,
                       top_k) +
         RowDifferences(round, "cached recv_x (16-bit words)", found.cached_recv_x,
                        expected.cached_recv_x);
}

std::string Differences(const Case& round, const Plan& found, const Plan& expected) {
  return DifferencesOf("is_token_in_rank", found.in_rank, expected.in_rank, round.ranks) +
         DifferencesOf("channel_prefix_matrix", found.channel_prefix, expected.channel_prefix,
                       round.channels) +
         DifferencesOf("send_head", found.send_head, expected.send_head, round.ranks);
}

std::string NotUseless(const Case& round, const Results& found) {
  Results expected = found;  // recv_channel_prefix may hold anything
  SetAllBits(expected.recv_x);
  SetAllBits(expected.recv_scales);
  SetAllBits(expected.recv_topk_idx);
  SetAllBits(expected.recv_topk_weights);
  SetAllBits(expected.recv_src_idx);
  SetAllBits(expected.rank_prefix);
  SetAllBits(expected.combined_x);
  SetAllBits(expected.combined_weights);
  SetAllBits(expected.cached_recv_x);
  return Differences(round, found, expected);
}

}  // namespace moeprof::stress
