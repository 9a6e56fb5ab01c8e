#include "common/nan_bits.h"
#include "gpu/exchange/moe_cached_dispatch_launch.h"
#include "gpu/exchange/row_copy.h"
#include "gpu/meeting/exchange_waits.h"

namespace moeprof::gpu {
namespace {

constexpr int kThreads = 1024;

// Where the rows from each rank end; by all threads of a block.
struct Ends {
  int32_t of_source[kMaxRanks];
  bool is_bad;
};

__device__ void ReadEnds(const CachedDispatchArgs& args, Ends& ends) {
  if (threadIdx.x == 0) {
    const int32_t ranks = args.call.ranks, rows = args.tokens * ranks;
    int32_t before = 0;
    ends.is_bad = false;
    for (int s = 0; s < ranks && !ends.is_bad; ++s) {
      const int32_t end = args.rank_prefix[s * ranks + args.call.rank];
      if (end < before || end > rows) {
        ends.is_bad = true;
        ReportFault(args.call.faults, args.call.op, FaultKind::kHandlePrefix, s, end, before, rows);
      }
      ends.of_source[s] = before = end;
    }
  }
  __syncthreads();
}

template <typename Word>
__device__ Word FilledWith(uint32_t bits);
template <>
__device__ uint4 FilledWith<uint4>(uint32_t bits) {
  return make_uint4(bits, bits, bits, bits);
}
template <>
__device__ uint32_t FilledWith<uint32_t>(uint32_t bits) {
  return bits;
}

// As row_copy.h has them for words of 16 bytes; by a warp.
using gpu::CopyRow;
using gpu::FillRow;
__device__ void CopyRow(const uint32_t* from, uint32_t* to, int32_t words) {
  for (int32_t i = threadIdx.x % 32; i < words; i += 32) {
    to[i] = *static_cast<const volatile uint32_t*>(from + i);
  }
}
__device__ void FillRow(uint32_t* to, int32_t words, uint32_t value) {
  for (int32_t i = threadIdx.x % 32; i < words; i += 32) to[i] = value;
}

template <typename Word>
__device__ void FetchRow(const CachedDispatchArgs& args, const Ends& ends, int32_t row) {
  Word* const to = static_cast<Word*>(args.recv_x) + int64_t{row} * args.words;
  int32_t source = 0;
  while (ends.of_source[source] <= row) ++source;  // row is below the last end
  const int32_t token = args.src_idx[row];
  if (token < 0 || token >= args.tokens) {
    if (threadIdx.x % 32 == 0) {
      ReportFault(args.call.faults, args.call.op, FaultKind::kHandleToken, row, token, args.tokens);
    }
    FillRow(to, args.words, kUselessBits);
    return;
  }
  CopyRow(static_cast<const Word*>(args.x[source]) + int64_t{token} * args.words, to, args.words);
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    MoeCachedDispatch(const MOEPROF_GRID_CONSTANT CachedDispatchArgs args) {
  __shared__ Ends ends;
  if (blockIdx.x == 0) RaiseReady(args.call);
  ReadEnds(args, ends);
  AwaitReady(args.call);
  const int32_t used = ends.is_bad ? 0 : ends.of_source[args.call.ranks - 1];
  // Rows lie in order of their source: taken in that order, all ranks would first fetch from rank
  // 0, and rank 0 would leave the link idle meanwhile.
  const int32_t parts = args.call.ranks, part = (used + parts - 1) / parts;
  for (int32_t i = WarpOfGrid(); i < part * parts; i += WarpsOfGrid()) {
    const int32_t row = (i % parts) * part + i / parts;
    if (row < used) FetchRow<Word>(args, ends, row);
  }
  const uint32_t fill = ends.is_bad ? kUselessBits : args.unused_bits;
  FillByGrid(static_cast<Word*>(args.recv_x), int64_t{used} * args.words,
             int64_t{args.tokens} * args.call.ranks * args.words, FilledWith<Word>(fill));
  Finish(args.call);
}

}  // namespace

gpuError_t LaunchCachedDispatch(gpuStream_t stream, const CachedDispatchArgs& args, int blocks) {
  if (args.word_bytes == sizeof(uint4)) {
    MoeCachedDispatch<uint4><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    MoeCachedDispatch<uint32_t><<<blocks, kThreads, 0, stream>>>(args);
  }
  return gpuGetLastError();
}

gpuError_t LoadCachedDispatchKernel() {
  const gpuError_t error = gpuLoadKernel(MoeCachedDispatch<uint4>);
  return error != gpuSuccess ? error : gpuLoadKernel(MoeCachedDispatch<uint32_t>);
}

}  // namespace moeprof::gpu
