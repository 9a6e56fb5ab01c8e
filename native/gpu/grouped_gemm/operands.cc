#include "gpu/grouped_gemm/operands.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

bool IsInteger(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::S32 || buffer.element_type() == ffi::DataType::S64;
}

}  // namespace

std::optional<std::string> LengthsOperand::Take(const ffi::AnyBuffer& lens,
                                                const ffi::AnyBuffer& offs, int64_t batch) {
  if (!IsInteger(lens) || !IsInteger(offs)) {
    return "group_lens and group_offs must be int32 or int64";
  }
  if (lens.dimensions().size() != 2 || offs.dimensions().size() != 2) {
    return "group_lens and group_offs must have a batch and a group axis";
  }
  lens_elements_ = lens.dimensions()[0];
  offs_elements_ = offs.dimensions()[0];
  groups_ = lens.dimensions()[1];
  if (lens_elements_ != 1 && lens_elements_ != batch) {
    return "group_lens has " + std::to_string(lens_elements_) + " batch elements, expected " +
           std::to_string(batch) + " or 1";
  }
  const bool has_offs = offs.dimensions()[1] != 0;
  if (has_offs && offs.dimensions()[1] != groups_ + 1) {
    return "group_offs has " + std::to_string(offs.dimensions()[1]) + " entries, expected " +
           std::to_string(groups_ + 1) + ", one more than group_lens";
  }
  if (has_offs && offs_elements_ != 1 && offs_elements_ != batch) {
    return "group_offs has " + std::to_string(offs_elements_) + " batch elements, expected " +
           std::to_string(batch) + " or 1";
  }
  lens_ = static_cast<const char*>(lens.untyped_data());
  offs_ = has_offs ? static_cast<const char*>(offs.untyped_data()) : nullptr;
  lens_are_int64_ = lens.element_type() == ffi::DataType::S64;
  offs_are_int64_ = offs.element_type() == ffi::DataType::S64;
  return std::nullopt;
}

GroupLengths LengthsOperand::of(int64_t element) const {
  const int64_t lens_row = lens_elements_ == 1 ? 0 : element;
  const int64_t offs_row = offs_elements_ == 1 ? 0 : element;
  const char* lens = lens_ + lens_row * groups_ * (lens_are_int64_ ? 8 : 4);
  const char* offs =
      offs_ == nullptr ? nullptr : offs_ + offs_row * (groups_ + 1) * (offs_are_int64_ ? 8 : 4);
  return {lens, offs, lens_are_int64_, offs_are_int64_, static_cast<int32_t>(groups_)};
}

std::optional<ElementType> ElementTypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return ElementType::kFloat32;
    case ffi::DataType::BF16:
      return ElementType::kBFloat16;
    case ffi::DataType::F16:
      return ElementType::kFloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace moeprof::gpu
