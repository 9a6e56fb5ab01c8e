// Question: what does one random round of a grouped product multiply, and what comes of it exactly?
//
// Operands are whole numbers from -2 to 2: every float32 sum of at most 2^22 products is exact in
// any order, so the one rounding is that to the output's type and results are compared bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moeprof::stress {

enum class Element { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// A product with `groups` matrices of k x n over `rows` rows: out = a b, or dB = a^T out.
struct GemmCase {
  uint64_t seed;
  std::vector<int64_t> lens;
  int64_t rows, k, n;
  Element type;
  bool trans_b, float_out, wide, with_offsets;
  bool is_unsound;  // one length is negative

  int64_t used() const;  // rows that belong to a group
  std::string Text() const;
};

// Sides of at most `longest`, lengths around the edges of tiles.
GemmCase RandomGemmCase(uint64_t seed, int64_t longest);

struct GemmOperands {
  std::vector<float> a;      // [rows, k]; NaN in the unused rows
  std::vector<float> b;      // [groups, k, n], or [groups, n, k] where trans_b
  std::vector<float> right;  // [rows, n], the right operand of dB; NaN in the unused rows
};

GemmOperands DrawGemmOperands(const GemmCase& round);

// Rounded to the output's type and back: [rows, n] and [groups, k, n].
std::vector<float> ForwardOf(const GemmCase& round, const GemmOperands& operands);
std::vector<float> VariableKOf(const GemmCase& round, const GemmOperands& operands);

// The bytes of `values` as elements of `type`, and back.
std::vector<uint8_t> Pack(const std::vector<float>& values, Element type);
std::vector<float> Unpack(const std::vector<uint8_t>& bytes, Element type);

}  // namespace moeprof::stress
