#include "cpu/grouped_gemm/kernel.h"

#include <cstring>

#include "cpu/products/gemm_tile.h"

namespace moeprof {

template <typename T>
void ComputeTile(const GroupedGemm<T>& op, const GroupOffsets& offsets, const Tile& tile) {
  const int64_t row = offsets.begin(tile.batch, tile.group) + tile.row0;
  const T* a = op.a + (op.a_batch == 1 ? 0 : tile.batch * op.rows * op.k);
  const T* b = op.b + ((op.b_batch == 1 ? 0 : tile.batch * op.groups) + tile.group) * op.k * op.n;
  T* out = op.out + (tile.batch * op.rows + row) * op.n + tile.col0;

  const Operand<T> a_tile =
      op.trans_a ? Operand<T>{a + row, op.rows, true} : Operand<T>{a + row * op.k, op.k, false};
  const Operand<T> b_tile = op.trans_b ? Operand<T>{b + tile.col0 * op.k, op.k, true}
                                       : Operand<T>{b + tile.col0, op.n, false};
  GemmTile(a_tile, b_tile, out, op.n, tile.rows, tile.cols, op.k);
}

template <typename T>
void ZeroRows(const GroupedGemm<T>& op, int64_t batch, int64_t row0, int64_t rows) {
  std::memset(op.out + (batch * op.rows + row0) * op.n, 0, rows * op.n * sizeof(T));
}

#define MOEPROF_INSTANTIATE(T)                                                           \
  template void ComputeTile<T>(const GroupedGemm<T>&, const GroupOffsets&, const Tile&); \
  template void ZeroRows<T>(const GroupedGemm<T>&, int64_t, int64_t, int64_t);
MOEPROF_INSTANTIATE(float)
MOEPROF_INSTANTIATE(BFloat16)
MOEPROF_INSTANTIATE(Float16)
#undef MOEPROF_INSTANTIATE

}  // namespace moeprof
