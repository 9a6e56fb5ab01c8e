#include "cpu/products/gemm_tile.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cblas.h"
#include "cpu/common/poison.h"

namespace moeprof {
namespace {

constexpr int64_t kBlockDepth = 1024;
constexpr int64_t kChunkRows = 256;

// Threads are ours: OpenBLAS must not start its own under each tile. This copy of OpenBLAS belongs
// to this library (NumPy and SciPy carry theirs under other names).
void UseOneBlasThread() {
  static const bool once = [] {
    scipy_openblas_set_num_threads(1);
    return true;
  }();
  (void)once;
}

void Sgemm(const Operand<float>& a, const Operand<float>& b, float beta, float* c, int64_t c_stride,
           int64_t rows, int64_t cols, int64_t depth) {
  UseOneBlasThread();
  scipy_cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
                    b.transposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(rows),
                    static_cast<blasint>(cols), static_cast<blasint>(depth), 1.0f, a.data,
                    static_cast<blasint>(a.stride), b.data, static_cast<blasint>(b.stride), beta, c,
                    static_cast<blasint>(c_stride));
}

template <typename T>
void FillZero(T* c, int64_t c_stride, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) std::memset(c + i * c_stride, 0, cols * sizeof(T));
}

struct Scratch {
  std::vector<float> a, b, c;

  static float* Get(std::vector<float>& block, int64_t count) {
    if (static_cast<int64_t>(block.size()) < count) block.resize(count);
    if (PoisonEnabled()) PoisonRows(block.data(), block.size() * sizeof(float));
    return block.data();
  }
};

// Widens op(m)[row0 : row0 + rows, col0 : col0 + cols]; the copy keeps m's orientation.
template <typename T>
Operand<float> Widen(const Operand<T>& m, int64_t row0, int64_t rows, int64_t col0, int64_t cols,
                     std::vector<float>& scratch) {
  const int64_t outer0 = m.transposed ? col0 : row0;
  const int64_t inner0 = m.transposed ? row0 : col0;
  const int64_t outer = m.transposed ? cols : rows;
  const int64_t inner = m.transposed ? rows : cols;
  float* target = Scratch::Get(scratch, outer * inner);
  for (int64_t i = 0; i < outer; ++i) {
    ToFloat32(m.data + (outer0 + i) * m.stride + inner0, target + i * inner, inner);
  }
  return {target, inner, m.transposed};
}

// sum[rows, cols] = a b in float32.
template <typename T>
void Accumulate(const Operand<T>& a, const Operand<T>& b, Scratch& scratch, float* sum,
                int64_t stride, int64_t rows, int64_t cols, int64_t depth) {
  for (int64_t k0 = 0; k0 < depth; k0 += kBlockDepth) {
    const int64_t block = std::min(kBlockDepth, depth - k0);
    const Operand<float> b_block = Widen(b, k0, block, 0, cols, scratch.b);
    for (int64_t i0 = 0; i0 < rows; i0 += kChunkRows) {
      const int64_t chunk = std::min(kChunkRows, rows - i0);
      const Operand<float> a_block = Widen(a, i0, chunk, k0, block, scratch.a);
      const float beta = k0 == 0 ? 0.0f : 1.0f;
      Sgemm(a_block, b_block, beta, sum + i0 * stride, stride, chunk, cols, block);
    }
  }
}

template <typename T>
void HalfTile(const Operand<T>& a, const Operand<T>& b, T* c, int64_t c_stride, int64_t rows,
              int64_t cols, int64_t depth) {
  thread_local Scratch scratch;
  float* sum = Scratch::Get(scratch.c, rows * cols);
  Accumulate(a, b, scratch, sum, cols, rows, cols, depth);
  for (int64_t i = 0; i < rows; ++i) FromFloat32(sum + i * cols, c + i * c_stride, cols);
}

template <typename T>
void HalfTile(const Operand<T>& a, const Operand<T>& b, float* c, int64_t c_stride, int64_t rows,
              int64_t cols, int64_t depth) {
  thread_local Scratch scratch;
  Accumulate(a, b, scratch, c, c_stride, rows, cols, depth);
}

}  // namespace

template <typename T, typename Out>
void GemmTile(const Operand<T>& a, const Operand<T>& b, Out* c, int64_t c_stride, int64_t rows,
              int64_t cols, int64_t depth) {
  if (depth == 0) return FillZero(c, c_stride, rows, cols);
  if constexpr (std::is_same_v<T, float>) {
    Sgemm(a, b, 0.0f, c, c_stride, rows, cols, depth);
  } else {
    HalfTile(a, b, c, c_stride, rows, cols, depth);
  }
}

#define MOEPROF_INSTANTIATE(T, Out)                                                            \
  template void GemmTile<T, Out>(const Operand<T>&, const Operand<T>&, Out*, int64_t, int64_t, \
                                 int64_t, int64_t);
MOEPROF_INSTANTIATE(float, float)
MOEPROF_INSTANTIATE(BFloat16, BFloat16)
MOEPROF_INSTANTIATE(Float16, Float16)
MOEPROF_INSTANTIATE(BFloat16, float)
MOEPROF_INSTANTIATE(Float16, float)
#undef MOEPROF_INSTANTIATE

}  // namespace moeprof
