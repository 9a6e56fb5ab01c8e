#include "common/nan_bits.h"
#include "gpu/exchange/moe_combine_launch.h"
#include "gpu/exchange/row_copy.h"
#include "gpu/meeting/exchange_waits.h"
#include "gpu/runtime/half_types.h"

namespace moeprof::gpu {
namespace {

constexpr int kThreads = 512;

// One 16-byte word as float32 values, and back.
template <ElementType kType>
struct Word;

template <>
struct Word<ElementType::kFloat32> {
  static constexpr int kValues = 4;
  static __device__ void Widen(const uint4& word, float (&out)[4]) {
    out[0] = __uint_as_float(word.x);
    out[1] = __uint_as_float(word.y);
    out[2] = __uint_as_float(word.z);
    out[3] = __uint_as_float(word.w);
  }
  static __device__ uint4 Narrow(const float (&v)[4]) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                      __float_as_uint(v[3]));
  }
};

template <typename T>
struct WordOfPairs {
  static constexpr int kValues = 8;
  static __device__ void Widen(const uint4& word, float (&out)[8]) {
    const uint32_t parts[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = WidenPair<T>(parts[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
  static __device__ uint4 Narrow(const float (&v)[8]) {
    return make_uint4(NarrowPair<T>(v[0], v[1]), NarrowPair<T>(v[2], v[3]),
                      NarrowPair<T>(v[4], v[5]), NarrowPair<T>(v[6], v[7]));
  }
};
template <>
struct Word<ElementType::kBFloat16> : WordOfPairs<bfloat16_t> {};
template <>
struct Word<ElementType::kFloat16> : WordOfPairs<float16_t> {};

// Sums the rows that `ranks` (one bit each) hold of one token; lane d has the row on rank d. Two
// rows' words are in flight at a time: the near one need not come before the far one is asked for.
template <ElementType kType>
__device__ void SumRows(const CombineArgs& args, uint32_t ranks, int32_t row_on_rank, uint4* to) {
  using W = Word<kType>;
  const int32_t lane = threadIdx.x % 32;
  for (int32_t first = 0; first < args.words; first += 32 * kInFlight) {
    float total[kInFlight][W::kValues];
    bool is_first = true;
    for (uint32_t left = ranks; left != 0;) {
      const int32_t d0 = __ffs(left) - 1;
      left &= left - 1;
      const bool has_second = left != 0;
      const int32_t d1 = has_second ? __ffs(left) - 1 : d0;
      left &= left - 1;  // 0 stays 0
      const uint4* const from0 = args.x[d0] + int64_t{Shuffle(row_on_rank, d0)} * args.words;
      const uint4* const from1 = args.x[d1] + int64_t{Shuffle(row_on_rank, d1)} * args.words;
      uint4 held0[kInFlight], held1[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t word = first + 32 * i + lane;
        if (word < args.words) held0[i] = LoadWord(from0 + word);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t word = first + 32 * i + lane;
        if (has_second && word < args.words) held1[i] = LoadWord(from1 + word);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        float values[W::kValues];
        W::Widen(held0[i], values);
#pragma unroll
        for (int j = 0; j < W::kValues; ++j) {
          total[i][j] = is_first ? values[j] : total[i][j] + values[j];
        }
        if (has_second) {
          W::Widen(held1[i], values);
#pragma unroll
          for (int j = 0; j < W::kValues; ++j) total[i][j] += values[j];
        }
      }
      is_first = false;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t word = first + 32 * i + lane;
      if (word < args.words) StoreWord(to + word, W::Narrow(total[i]));
    }
  }
}

// As SumRows and the cases of one row and none, a float at a time.
__device__ void CombineNarrow(const CombineArgs& args, int32_t token, uint32_t ranks,
                              int32_t row_on_rank, bool is_useless) {
  float* const to = reinterpret_cast<float*>(args.combined_x) + int64_t{token} * args.words;
  for (int32_t first = 0; first < args.words; first += 32) {
    const int32_t column = first + static_cast<int32_t>(threadIdx.x % 32);
    float total = is_useless ? __uint_as_float(kUselessBits) : 0.0f;
    for (uint32_t left = ranks; left != 0; left &= left - 1) {
      const int32_t d = __ffs(left) - 1;
      const int64_t row = Shuffle(row_on_rank, d);
      if (column >= args.words) continue;
      const auto* const from = reinterpret_cast<const float*>(args.x[d]) + row * args.words;
      const float value = *static_cast<const volatile float*>(from + column);
      total = left == ranks ? value : total + value;
    }
    if (column < args.words) to[column] = total;
  }
}

// The row of this rank's `token` on the rank that the lane stands for, or -1 where it was not sent
// there; `is_bad` where the handle places it outside.
__device__ int32_t RowOnRank(const CombineArgs& args, int32_t token, bool& is_bad) {
  const ExchangeCall& call = args.call;
  const int32_t d = threadIdx.x % 32;
  is_bad = false;
  if (d >= call.ranks || !args.in_rank[int64_t{token} * call.ranks + d]) return -1;
  const int32_t channel = token / ((args.tokens + args.channels - 1) / args.channels);
  const int64_t first = call.rank == 0 ? 0 : args.rank_prefix[(call.rank - 1) * call.ranks + d];
  const int64_t start = channel == 0 ? 0 : args.channel_prefix[d * args.channels + channel - 1];
  const int64_t row = first + start + args.send_head[int64_t{token} * call.ranks + d];
  const int64_t rows = int64_t{args.tokens} * call.ranks;
  if (first >= 0 && row >= 0 && row < rows) return static_cast<int32_t>(row);
  is_bad = true;
  ReportFault(call.faults, call.op, FaultKind::kHandleRow, token, d, row, rows);
  return -1;
}

template <ElementType kType, bool kIsNarrow>
__device__ void CombineToken(const CombineArgs& args, int32_t token, bool is_broken) {
  const int32_t lane = threadIdx.x % 32;
  uint4* const to = args.combined_x + int64_t{token} * args.words;
  float* const to_weights = args.combined_weights + int64_t{token} * args.top_k;
  bool is_bad = false;
  const int32_t row_on_rank = is_broken ? -1 : RowOnRank(args, token, is_bad);
  if (Any(is_bad) || is_broken) {
    if constexpr (kIsNarrow) {
      CombineNarrow(args, token, 0, -1, true);
    } else {
      FillRow(to, args.words, kUselessBits);
    }
    if (lane < args.top_k) to_weights[lane] = __uint_as_float(kUselessBits);
    return;
  }
  const uint32_t ranks = Ballot(row_on_rank >= 0);
  if constexpr (kIsNarrow) {
    CombineNarrow(args, token, ranks, row_on_rank, false);
  } else if (ranks == 0) {
    FillRow(to, args.words, 0);
  } else if (__popc(ranks) == 1) {
    const int32_t d = __ffs(ranks) - 1;
    const int64_t row = Shuffle(row_on_rank, d);
    CopyRow(args.x[d] + row * args.words, to, args.words);
  } else {
    SumRows<kType>(args, ranks, row_on_rank, to);
  }
  if (args.top_k == 0) return;
  float total = 0;
  for (uint32_t left = ranks; left != 0; left &= left - 1) {
    const int32_t d = __ffs(left) - 1;
    const int64_t row = Shuffle(row_on_rank, d);
    if (lane < args.top_k) total += args.topk_weights[d][row * args.top_k + lane];
  }
  if (lane < args.top_k) to_weights[lane] = total;
}

template <ElementType kType, bool kIsNarrow>
__global__ void __launch_bounds__(kThreads)
    MoeCombine(const MOEPROF_GRID_CONSTANT CombineArgs args) {
  if (blockIdx.x == 0) RaiseReady(args.call);
  AwaitReady(args.call);
  // A dispatch whose routing was not sound says so in its handle.
  const bool is_broken = args.rank_prefix[0] < 0;
  for (int32_t token = WarpOfGrid(); token < args.tokens; token += WarpsOfGrid()) {
    CombineToken<kType, kIsNarrow>(args, token, is_broken);
  }
  Finish(args.call);
}

}  // namespace

gpuError_t LaunchCombine(gpuStream_t stream, const CombineArgs& args, int blocks) {
  if (args.is_narrow) {
    MoeCombine<ElementType::kFloat32, true><<<blocks, kThreads, 0, stream>>>(args);
    return gpuGetLastError();
  }
  switch (args.type) {
    case ElementType::kFloat32:
      MoeCombine<ElementType::kFloat32, false><<<blocks, kThreads, 0, stream>>>(args);
      break;
    case ElementType::kBFloat16:
      MoeCombine<ElementType::kBFloat16, false><<<blocks, kThreads, 0, stream>>>(args);
      break;
    case ElementType::kFloat16:
      MoeCombine<ElementType::kFloat16, false><<<blocks, kThreads, 0, stream>>>(args);
      break;
  }
  return gpuGetLastError();
}

gpuError_t LoadCombineKernels() {
  for (const auto kernel :
       {MoeCombine<ElementType::kFloat32, false>, MoeCombine<ElementType::kBFloat16, false>,
        MoeCombine<ElementType::kFloat16, false>, MoeCombine<ElementType::kFloat32, true>}) {
    if (const gpuError_t error = gpuLoadKernel(kernel); error != gpuSuccess) return error;
  }
  return gpuSuccess;
}

}  // namespace moeprof::gpu
