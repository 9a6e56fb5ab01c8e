#include "cpu/moe_combine/kernel.h"

#include <algorithm>
#include <cstring>

#include "cpu/common/convert.h"

namespace moeprof {
namespace {

// Where one token's rows lie.
struct Rows {
  std::vector<const void*> x;
  std::vector<const float*> weights;
};

void AddTo(float* total, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) total[i] += values[i];
}

void SumInFloat(const std::vector<const void*>& rows, float* out, float*, int64_t hidden) {
  std::memcpy(out, rows[0], hidden * sizeof(float));
  for (size_t i = 1; i < rows.size(); ++i) AddTo(out, static_cast<const float*>(rows[i]), hidden);
}

template <typename T>
void SumInFloat(const std::vector<const void*>& rows, T* out, float* scratch, int64_t hidden) {
  float* const total = scratch;
  float* const widened = scratch + hidden;
  ToFloat32(static_cast<const T*>(rows[0]), total, hidden);
  for (size_t i = 1; i < rows.size(); ++i) {
    ToFloat32(static_cast<const T*>(rows[i]), widened, hidden);
    AddTo(total, widened, hidden);
  }
  FromFloat32(total, out, hidden);
}

template <typename T>
void SumToken(const Rows& rows, T* out, float* scratch, int64_t hidden) {
  if (rows.x.empty()) {
    std::memset(out, 0, hidden * sizeof(T));
  } else if (rows.x.size() == 1) {
    std::memcpy(out, rows.x[0], hidden * sizeof(T));
  } else {
    SumInFloat(rows.x, out, scratch, hidden);
  }
}

template <typename T>
void FindRows(const MoeHandle& handle, int64_t hidden, int64_t top_k,
              const std::vector<CombineSource>& sources, int64_t rank, int64_t token, Rows& rows) {
  rows.x.clear();
  rows.weights.clear();
  for (int64_t d = 0; d < handle.ranks; ++d) {
    if (!handle.in_rank[token * handle.ranks + d]) continue;
    const int64_t row = handle.RowOf(rank, token, d);
    rows.x.push_back(static_cast<const T*>(sources[d].x) + row * hidden);
    rows.weights.push_back(sources[d].topk_weights + row * top_k);
  }
}

}  // namespace

template <typename T>
void SumRows(const MoeHandle& handle, int64_t hidden, int64_t top_k,
             const std::vector<CombineSource>& sources, int64_t rank, const CombineTarget& target) {
  std::vector<float> scratch(2 * hidden);
  Rows rows;
  for (int64_t token = 0; token < handle.tokens; ++token) {
    FindRows<T>(handle, hidden, top_k, sources, rank, token, rows);
    SumToken(rows, static_cast<T*>(target.x) + token * hidden, scratch.data(), hidden);
    float* const weights = target.topk_weights + token * top_k;
    std::fill_n(weights, top_k, 0.0f);
    for (const float* received : rows.weights) AddTo(weights, received, top_k);
  }
}

template void SumRows<float>(const MoeHandle&, int64_t, int64_t, const std::vector<CombineSource>&,
                             int64_t, const CombineTarget&);
template void SumRows<BFloat16>(const MoeHandle&, int64_t, int64_t,
                                const std::vector<CombineSource>&, int64_t, const CombineTarget&);
template void SumRows<Float16>(const MoeHandle&, int64_t, int64_t,
                               const std::vector<CombineSource>&, int64_t, const CombineTarget&);

}  // namespace moeprof
