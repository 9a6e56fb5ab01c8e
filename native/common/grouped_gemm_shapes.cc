#include "common/grouped_gemm_shapes.h"

#include <optional>

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

using Unfit = std::optional<Complaint>;

std::string Number(int64_t value) { return std::to_string(value); }

bool IsInteger(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::DataType::S32 || buffer.element_type() == ffi::DataType::S64;
}

bool IsFloat(ffi::DataType type) {
  return type == ffi::DataType::F32 || type == ffi::DataType::BF16 || type == ffi::DataType::F16;
}

bool HasRank(const ffi::AnyBuffer& buffer, size_t rank) {
  return buffer.dimensions().size() == rank;
}

// Two operands of a product and how many elements of the batch they have.
Unfit CheckBatches(const char* first, int64_t first_batch, const char* second, int64_t second_batch,
                   int64_t batch) {
  if ((first_batch == 1 || first_batch == batch) && (second_batch == 1 || second_batch == batch)) {
    return std::nullopt;
  }
  return std::string(first) + " has " + Number(first_batch) + " and " + second + " " +
         Number(second_batch) + " batch elements, expected " + Number(batch) + " or 1";
}

Unfit CheckOutput(int64_t found_rows, int64_t found_cols, int64_t rows, int64_t cols) {
  if (found_rows == rows && found_cols == cols) return std::nullopt;
  return "the output is " + Number(found_rows) + " x " + Number(found_cols) + ", expected " +
         Number(rows) + " x " + Number(cols);
}

Unfit CheckBatch(const char* array, int64_t found, int64_t batch) {
  if (found == 1 || found == batch) return std::nullopt;
  return std::string(array) + " has " + Number(found) + " batch elements, expected " +
         Number(batch) + " or 1";
}

// `owner` is whose groups they are, as texts name it.
Unfit CheckLengths(const ProductBuffers& buffers, int64_t batch, int64_t groups, const char* owner,
                   LengthsShape& shape) {
  if (!IsInteger(buffers.lens) || !IsInteger(buffers.offs)) {
    return "group_lens and group_offs must be int32 or int64";
  }
  if (!HasRank(buffers.lens, 2) || !HasRank(buffers.offs, 2)) {
    return "group_lens and group_offs must have a batch and a group axis";
  }
  const auto lens = buffers.lens.dimensions(), offs = buffers.offs.dimensions();
  shape = {lens[0], offs[0], lens[1], offs[1] != 0};
  if (auto unfit = CheckBatch("group_lens", lens[0], batch)) return unfit;
  if (shape.has_offs) {
    if (offs[1] != lens[1] + 1) {
      return "group_offs has " + Number(offs[1]) + " entries, expected " + Number(lens[1] + 1) +
             ", one more than group_lens";
    }
    if (auto unfit = CheckBatch("group_offs", offs[0], batch)) return unfit;
  }
  if (lens[1] == groups) return std::nullopt;
  return "group_lens has " + Number(lens[1]) + " groups, but " + owner + " has " + Number(groups);
}

Unfit Check(const ProductBuffers& buffers, bool trans_a, bool trans_b, ForwardShape& shape) {
  if (!HasRank(buffers.a, 3) || !HasRank(buffers.b, 4) || !HasRank(buffers.out, 3)) {
    return "expected a, b and the output of rank 3, 4 and 3";
  }
  const auto a = buffers.a.dimensions(), b = buffers.b.dimensions();
  const auto out = buffers.out.dimensions();
  shape = {a[0], b[0], out[0], a[trans_a ? 2 : 1], a[trans_a ? 1 : 2], b[trans_b ? 2 : 3],
           b[1], {}};
  const int64_t b_k = b[trans_b ? 3 : 2];
  if (b_k != shape.k) return "a is " + Number(shape.k) + " wide, but b expects " + Number(b_k);
  if (auto unfit = CheckBatches("a", a[0], "b", b[0], shape.batch)) return unfit;
  if (auto unfit = CheckOutput(out[1], out[2], shape.rows, shape.n)) return unfit;
  const ffi::DataType type = buffers.a.element_type();
  if (type != buffers.b.element_type() || type != buffers.out.element_type()) {
    return "a, b and the output differ in dtype";
  }
  if (!IsFloat(type)) return "a must be float32, bfloat16 or float16";
  return CheckLengths(buffers, shape.batch, shape.groups, "b", shape.lengths);
}

Unfit Check(const ProductBuffers& buffers, VariableKShape& shape) {
  if (!HasRank(buffers.a, 3) || !HasRank(buffers.b, 3) || !HasRank(buffers.out, 4)) {
    return "expected lhs, rhs and the output of rank 3, 3 and 4";
  }
  const auto lhs = buffers.a.dimensions(), rhs = buffers.b.dimensions();
  const auto out = buffers.out.dimensions();
  shape = {lhs[0], rhs[0], out[0], lhs[1], lhs[2], rhs[2], out[1], {}};
  if (rhs[1] != shape.rows) {
    return "lhs has " + Number(shape.rows) + " rows, but rhs has " + Number(rhs[1]);
  }
  if (auto unfit = CheckBatches("lhs", lhs[0], "rhs", rhs[0], shape.batch)) return unfit;
  if (auto unfit = CheckOutput(out[2], out[3], shape.m, shape.n)) return unfit;
  const ffi::DataType type = buffers.a.element_type(), out_type = buffers.out.element_type();
  if (type != buffers.b.element_type()) return "lhs and rhs differ in dtype";
  if (out_type != type && out_type != ffi::DataType::F32) {
    return "the output must be float32 or of the dtype of lhs and rhs";
  }
  if (!IsFloat(type)) return "lhs must be float32, bfloat16 or float16";
  return CheckLengths(buffers, shape.batch, shape.groups, "the output", shape.lengths);
}

}  // namespace

std::variant<ForwardShape, Complaint> ReadForward(const ProductBuffers& buffers, bool trans_a,
                                                  bool trans_b) {
  ForwardShape shape;
  if (auto unfit = Check(buffers, trans_a, trans_b, shape)) return *unfit;
  return shape;
}

std::variant<VariableKShape, Complaint> ReadVariableK(const ProductBuffers& buffers) {
  VariableKShape shape;
  if (auto unfit = Check(buffers, shape)) return *unfit;
  return shape;
}

}  // namespace moeprof
