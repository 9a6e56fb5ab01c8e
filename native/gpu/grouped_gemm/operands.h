// Question: are the integer operands of a grouped GEMM call sound, as far as the host can see?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpu/grouped_gemm/group_lengths.h"
#include "gpu/runtime/element_type.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

// group_lens [batch or 1, G] and group_offs [batch or 1, G + 1] or [1, 0] (absent) on the device.
class LengthsOperand {
 public:
  // Returns the complaint, or nothing.
  std::optional<std::string> Take(const xla::ffi::AnyBuffer& lens, const xla::ffi::AnyBuffer& offs,
                                  int64_t batch);
  int64_t groups() const { return groups_; }
  GroupLengths of(int64_t element) const;
  // What a fault in the lengths of `element` is reported as: -1 where all elements share them.
  int64_t NameOf(int64_t element) const { return lens_elements_ == 1 ? -1 : element; }

 private:
  const char* lens_ = nullptr;
  const char* offs_ = nullptr;  // null where absent
  bool lens_are_int64_ = false, offs_are_int64_ = false;
  int64_t lens_elements_ = 0, offs_elements_ = 0;
  int64_t groups_ = 0;
};

// The type of an operand, or nothing where the kernels do not take it.
std::optional<ElementType> ElementTypeOf(xla::ffi::DataType type);

}  // namespace moeprof::gpu
