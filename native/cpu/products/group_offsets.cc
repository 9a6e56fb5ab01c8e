#include "cpu/products/group_offsets.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

int64_t ReadInteger(const ffi::AnyBuffer& buffer, int64_t index) {
  if (buffer.element_type() == ffi::DataType::S32) {
    return static_cast<const int32_t*>(buffer.untyped_data())[index];
  }
  return static_cast<const int64_t*>(buffer.untyped_data())[index];
}

std::string Name(const char* array, int64_t element, int64_t elements, int64_t index) {
  std::string name = std::string(array) + "[" + std::to_string(index) + "]";
  return elements == 1 ? name : name + " of batch element " + std::to_string(element);
}

}  // namespace

std::optional<std::string> GroupOffsets::Read(const ffi::AnyBuffer& group_lens,
                                              const ffi::AnyBuffer& group_offs,
                                              const LengthsShape& shape, int64_t rows) {
  elements_ = shape.lens_batch;
  groups_ = shape.groups;
  offsets_.assign(elements_ * (groups_ + 1), 0);
  for (int64_t b = 0; b < elements_; ++b) {
    int64_t* offsets = offsets_.data() + b * (groups_ + 1);
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t length = ReadInteger(group_lens, b * groups_ + g);
      if (length < 0) {
        return Name("group_lens", b, elements_, g) + " is " + std::to_string(length) +
               "; a length is at least 0";
      }
      if (length > rows - offsets[g]) {
        return Name("group_lens", b, elements_, g) + " is " + std::to_string(length) +
               ": groups 0 to " + std::to_string(g) + " sum to " +
               std::to_string(static_cast<uint64_t>(offsets[g]) + static_cast<uint64_t>(length)) +
               " rows, but there are " + std::to_string(rows) + " rows";
      }
      offsets[g + 1] = offsets[g] + length;
    }
  }
  const int64_t offs_elements = shape.offs_batch;
  if (!shape.has_offs) return std::nullopt;
  for (int64_t b = 0; b < std::max(offs_elements, elements_); ++b) {
    for (int64_t g = 0; g <= groups_; ++g) {
      const int64_t row = offs_elements == 1 ? 0 : b;
      const int64_t offset = ReadInteger(group_offs, row * (groups_ + 1) + g);
      if (offset != begin(b, g)) {
        return Name("group_offs", row, offs_elements, g) + " is " + std::to_string(offset) +
               ", but the lengths before it sum to " + std::to_string(begin(b, g));
      }
    }
  }
  return std::nullopt;
}

}  // namespace moeprof
