// Question: which rows belong to which group, and are the caller's lengths and offsets sound?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/grouped_gemm_shapes.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

// Offsets of `groups` groups for each of `batch` elements; group g of element b owns the rows
// [begin(b, g), begin(b, g + 1)). One element serves every b where lengths are shared.
class GroupOffsets {
 public:
  int64_t begin(int64_t b, int64_t g) const { return offsets_[Row(b) * (groups_ + 1) + g]; }
  int64_t length(int64_t b, int64_t g) const { return begin(b, g + 1) - begin(b, g); }
  int64_t total(int64_t b) const { return begin(b, groups_); }
  int64_t groups() const { return groups_; }

  // Fills *this from group_lens and group_offs, int32 or int64 of that shape.
  // Returns the complaint, naming index, value and bound, where a length is negative, the groups
  // reach past `rows`, or an offset is not the sum of the lengths before it.
  std::optional<std::string> Read(const xla::ffi::AnyBuffer& group_lens,
                                  const xla::ffi::AnyBuffer& group_offs, const LengthsShape& shape,
                                  int64_t rows);

 private:
  int64_t Row(int64_t b) const { return elements_ == 1 ? 0 : b; }

  int64_t elements_ = 0;
  int64_t groups_ = 0;
  std::vector<int64_t> offsets_;
};

}  // namespace moeprof
