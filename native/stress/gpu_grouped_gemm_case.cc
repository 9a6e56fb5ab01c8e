#include "stress/gpu_grouped_gemm_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "cpu/common/convert.h"

namespace moeprof::stress {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kEdges[] = {0, 1, 7, 8, 16, 17, 63, 64, 65, 127, 128, 129, 191, 255, 257};

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int64_t In(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool OneIn(int64_t count) { return In(1, count) == 1; }
  void Fill(std::vector<float>& values) {
    for (float& value : values) value = static_cast<float>(In(-2, 2));
  }

 private:
  std::mt19937_64 engine_;
};

template <typename T>
std::vector<uint8_t> PackAs(const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  FromFloat32(values.data(), reinterpret_cast<T*>(bytes.data()), values.size());
  return bytes;
}

template <typename T>
std::vector<float> UnpackAs(const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(T));
  ToFloat32(reinterpret_cast<const T*>(bytes.data()), values.data(), values.size());
  return values;
}

std::vector<float> Rounded(const std::vector<float>& exact, Element type) {
  return Unpack(Pack(exact, type), type);
}

}  // namespace

int64_t GemmCase::used() const { return std::accumulate(lens.begin(), lens.end(), int64_t{0}); }

std::string GemmCase::Text() const {
  const char* const types[] = {"float32", "bfloat16", "float16"};
  std::string text = "seed " + std::to_string(seed) + ": rows " + std::to_string(rows) + ", k " +
                     std::to_string(k) + ", n " + std::to_string(n) + ", " +
                     types[static_cast<int>(type)] + (trans_b ? ", b transposed" : "") +
                     (float_out ? ", float32 dB" : "") + (wide ? ", int64" : ", int32") +
                     (with_offsets ? ", offsets" : "") + ", lengths";
  for (int64_t length : lens) text += " " + std::to_string(length);
  return text;
}

GemmCase RandomGemmCase(uint64_t seed, int64_t longest) {
  Draw draw(seed);
  GemmCase round{};
  round.seed = seed;
  const int64_t groups = draw.OneIn(6) ? draw.In(30, 40) : draw.In(1, 6);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t edge = kEdges[draw.In(0, std::size(kEdges) - 1)];
    round.lens.push_back(std::min(groups > 6 ? edge % 20 : edge, longest));
  }
  round.type = static_cast<Element>(draw.OneIn(6) ? 0 : draw.In(1, 2));
  round.k = 8 * draw.In(1, longest / 8);
  round.n = 8 * draw.In(1, longest / 8);
  if (draw.OneIn(8)) round.k = std::max<int64_t>(1, round.k - 3);  // not by tiles
  round.trans_b = draw.OneIn(2);
  round.float_out = draw.OneIn(2);
  round.wide = draw.OneIn(2);
  round.with_offsets = draw.OneIn(3);
  const int64_t sum = round.used();
  round.rows = std::max<int64_t>(1, sum + (draw.OneIn(2) ? 0 : draw.In(0, 70)));
  round.is_unsound = draw.OneIn(10);
  if (round.is_unsound) round.lens[draw.In(0, groups - 1)] = -1 - draw.In(0, 5);
  return round;
}

GemmOperands DrawGemmOperands(const GemmCase& round) {
  Draw draw(round.seed + 1);
  const size_t groups = round.lens.size();
  GemmOperands operands{std::vector<float>(round.rows * round.k),
                        std::vector<float>(groups * round.k * round.n),
                        std::vector<float>(round.rows * round.n)};
  draw.Fill(operands.a);
  draw.Fill(operands.b);
  draw.Fill(operands.right);
  const int64_t used = std::max<int64_t>(0, round.used());
  std::fill(operands.a.begin() + used * round.k, operands.a.end(), kNaN);
  std::fill(operands.right.begin() + used * round.n, operands.right.end(), kNaN);
  return operands;
}

std::vector<float> ForwardOf(const GemmCase& round, const GemmOperands& operands) {
  std::vector<float> out(round.rows * round.n, 0.0f);
  int64_t row = 0;
  for (size_t g = 0; g < round.lens.size(); ++g) {
    const float* const b = operands.b.data() + g * round.k * round.n;
    for (const int64_t end = row + round.lens[g]; row < end; ++row) {
      for (int64_t depth = 0; depth < round.k; ++depth) {
        const float left = operands.a[row * round.k + depth];
        for (int64_t col = 0; col < round.n; ++col) {
          out[row * round.n + col] +=
              left * (round.trans_b ? b[col * round.k + depth] : b[depth * round.n + col]);
        }
      }
    }
  }
  return Rounded(out, round.type);
}

std::vector<float> VariableKOf(const GemmCase& round, const GemmOperands& operands) {
  std::vector<float> out(round.lens.size() * round.k * round.n, 0.0f);
  int64_t row = 0;
  for (size_t g = 0; g < round.lens.size(); ++g) {
    float* const matrix = out.data() + g * round.k * round.n;
    for (const int64_t end = row + round.lens[g]; row < end; ++row) {
      for (int64_t m = 0; m < round.k; ++m) {
        const float left = operands.a[row * round.k + m];
        for (int64_t col = 0; col < round.n; ++col) {
          matrix[m * round.n + col] += left * operands.right[row * round.n + col];
        }
      }
    }
  }
  return Rounded(out, round.float_out ? Element::kFloat32 : round.type);
}

std::vector<uint8_t> Pack(const std::vector<float>& values, Element type) {
  if (type == Element::kBFloat16) return PackAs<BFloat16>(values);
  if (type == Element::kFloat16) return PackAs<Float16>(values);
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> Unpack(const std::vector<uint8_t>& bytes, Element type) {
  if (type == Element::kBFloat16) return UnpackAs<BFloat16>(bytes);
  if (type == Element::kFloat16) return UnpackAs<Float16>(bytes);
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace moeprof::stress
