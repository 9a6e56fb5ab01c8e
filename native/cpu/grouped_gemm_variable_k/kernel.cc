#include "cpu/grouped_gemm_variable_k/kernel.h"

#include "cpu/products/gemm_tile.h"

namespace moeprof {

template <typename T, typename Out>
void ComputeTile(const VariableKGemm<T, Out>& op, const GroupOffsets& offsets, const Tile& tile) {
  const int64_t row = offsets.begin(tile.batch, tile.group);
  const T* lhs = op.lhs + ((op.lhs_batch == 1 ? 0 : tile.batch * op.rows) + row) * op.m + tile.row0;
  const T* rhs = op.rhs + ((op.rhs_batch == 1 ? 0 : tile.batch * op.rows) + row) * op.n + tile.col0;
  Out* out =
      op.out + (tile.batch * op.groups + tile.group) * op.m * op.n + tile.row0 * op.n + tile.col0;
  GemmTile(Operand<T>{lhs, op.m, true}, Operand<T>{rhs, op.n, false}, out, op.n, tile.rows,
           tile.cols, offsets.length(tile.batch, tile.group));
}

#define MOEPROF_INSTANTIATE(T, Out) \
  template void ComputeTile<T, Out>(const VariableKGemm<T, Out>&, const GroupOffsets&, const Tile&);
MOEPROF_INSTANTIATE(float, float)
MOEPROF_INSTANTIATE(BFloat16, BFloat16)
MOEPROF_INSTANTIATE(Float16, Float16)
MOEPROF_INSTANTIATE(BFloat16, float)
MOEPROF_INSTANTIATE(Float16, float)
#undef MOEPROF_INSTANTIATE

}  // namespace moeprof
