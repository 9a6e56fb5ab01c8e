#include "common/nan_bits.h"
#include "gpu/exchange/moe_dispatch_launch.h"
#include "gpu/exchange/row_copy.h"
#include "gpu/meeting/exchange_waits.h"
#include "gpu/runtime/early_launch.h"

namespace moeprof::gpu {
namespace {

constexpr int kPlanThreads = 256;
constexpr int kPlanWarps = kPlanThreads / 32;
static_assert(kPlanWarps >= kMaxRanks, "a warp per rank sums over the channels");
constexpr int kSendThreads = 1024;

// Names the first of the token's ids that is outside the experts.
__device__ void ReportIds(const DispatchArgs& args, int32_t token) {
  const int32_t experts = args.shape.experts_per_rank * args.call.ranks;
  for (int32_t slot = 0; slot < args.shape.top_k; ++slot) {
    const int32_t expert = args.topk_idx[int64_t{token} * args.shape.top_k + slot];
    if (expert >= -1 && expert < experts) continue;
    return ReportFault(args.call.faults, args.call.op, FaultKind::kExpertId, token, slot, expert,
                       experts);
  }
}

// The ranks that own one of the token's experts, one bit each. Eight ids are asked for at once: one
// after the other, each waits for memory.
__device__ uint32_t RanksOf(const DispatchArgs& args, int32_t token, bool& is_bad) {
  constexpr int kAtOnce = 8;
  const DispatchShape& shape = args.shape;
  const int32_t experts = shape.experts_per_rank * args.call.ranks;
  const int32_t* const ids = args.topk_idx + int64_t{token} * shape.top_k;
  uint32_t ranks = 0;
  bool is_sound = true;
  for (int32_t first = 0; first < shape.top_k; first += kAtOnce) {
    int32_t held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      held[i] = first + i < shape.top_k ? __ldg(ids + first + i) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is_expert = held[i] >= 0 && held[i] < experts;
      if (is_expert) ranks |= 1u << (held[i] / shape.experts_per_rank);
      is_sound &= is_expert || held[i] == -1;
    }
  }
  if (is_sound) return ranks;
  is_bad = true;
  ReportIds(args, token);
  return ranks;
}

// Makes of each channel's count the sum up to its end; by a warp. Returns the sum of all.
__device__ int32_t SumOverChannels(volatile int32_t* counts, int32_t channels) {
  const int32_t lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int32_t first = 0; first < channels; first += 32) {
    const bool is_channel = first + lane < channels;
    int32_t sum = is_channel ? counts[first + lane] : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t lower = ShuffleUp(sum, step);
      if (lane >= step) sum += lower;
    }
    if (is_channel) counts[first + lane] = before + sum;
    before += Shuffle(sum, 31);
  }
  return before;
}

// Block c lists the tokens of channel c; the last block to finish sums over the channels, tells
// the counts to every rank, and that this rank is ready.
__global__ void __launch_bounds__(kPlanThreads)
    MoeDispatchPlan(const MOEPROF_GRID_CONSTANT DispatchArgs args) {
  __shared__ int32_t of_warp[kPlanWarps][kMaxRanks];
  __shared__ int32_t sent[kMaxRanks];
  const ExchangeCall& call = args.call;
  const DispatchShape& shape = args.shape;
  const int32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int32_t channel = blockIdx.x;
  const int32_t per_channel = (shape.tokens + shape.channels - 1) / shape.channels;
  const int32_t begin = min(channel * per_channel, shape.tokens);
  const int32_t end = min(begin + per_channel, shape.tokens);
  ExchangeFlags* const own = call.flags[call.rank];
  bool is_bad = false;
  // The sending kernel may take up its place: it waits for this one's flag.
  LetNextKernelStart();

  if (thread < kMaxRanks) sent[thread] = 0;
  __syncthreads();
  for (int32_t first = begin; first < end; first += kPlanThreads) {
    const int32_t token = first + thread;
    const uint32_t ranks = token < end ? RanksOf(args, token, is_bad) : 0;
    int32_t place[kMaxRanks];
#pragma unroll
    for (int d = 0; d < kMaxRanks; ++d) {
      const uint32_t going = Ballot((ranks >> d) & 1);
      place[d] = __popc(going & ((1u << lane) - 1));
      if (lane == 0) of_warp[warp][d] = __popc(going);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kMaxRanks; ++d) {
      if (d >= call.ranks || token >= end) continue;
      int32_t before = sent[d];
      for (int w = 0; w < warp; ++w) before += of_warp[w][d];
      const bool goes = (ranks >> d) & 1;
      const int64_t at = int64_t{token} * call.ranks + d;
      args.in_rank[at] = goes;
      args.send_head[at] = goes ? before + place[d] : -1;
    }
    __syncthreads();
    if (thread < kMaxRanks) {
      for (int w = 0; w < kPlanWarps; ++w) sent[thread] += of_warp[w][thread];
    }
    __syncthreads();
  }
  if (thread < call.ranks) args.channel_prefix[thread * shape.channels + channel] = sent[thread];
  if (is_bad) atomicExch(&own->plan_is_bad, 1u);

  if (!IsLastBlock(&own->plan_ticket)) return;
  if (warp < call.ranks) {
    const int32_t total =
        SumOverChannels(args.channel_prefix + warp * shape.channels, shape.channels);
    const bool no_plan = *static_cast<volatile uint32_t*>(&own->plan_is_bad) != 0;
    if (lane == 0) sent[warp] = no_plan ? -1 : total;
  }
  __syncthreads();
  if (thread == 0) own->plan_is_bad = 0;
  // One thread per peer: its release covers its own counts.
  if (thread >= call.ranks) return;
  for (int d = 0; d < call.ranks; ++d) {
    *static_cast<volatile int32_t*>(&call.flags[thread]->counts[call.rank][d]) = sent[d];
  }
  RaiseReadyFor(call, thread);
}

struct Counts {
  int32_t first_row[kMaxRanks];  // of this rank's rows on each rank
  int32_t used;                  // rows that this rank receives
  bool is_bad;
};

// By all threads of a block, after AwaitReady.
__device__ void ReadCounts(const ExchangeCall& call, Counts& counts) {
  auto count = [&](int source, int destination) {
    return *static_cast<volatile int32_t*>(&call.flags[call.rank]->counts[source][destination]);
  };
  const int32_t thread = threadIdx.x;
  if (thread < call.ranks) {
    int32_t first = 0;
    for (int s = 0; s < call.rank; ++s) first += count(s, thread);
    counts.first_row[thread] = first;
  }
  if (thread == 32) {
    int32_t used = 0;
    bool is_bad = false;
    for (int s = 0; s < call.ranks; ++s) {
      used += count(s, call.rank);
      is_bad |= count(s, 0) < 0;
    }
    counts.used = is_bad ? 0 : used;
    counts.is_bad = is_bad;
  }
  __syncthreads();
}

// Small matrices, by one block: how many rows came to each rank up to each source (all ranks have
// the same), and where this rank's channels begin in what each rank receives from it.
__device__ void WritePrefixes(const DispatchArgs& args, const Counts& counts) {
  const ExchangeCall& call = args.call;
  const int32_t channels = args.shape.channels;
  for (int32_t i = threadIdx.x; i < call.ranks * call.ranks; i += blockDim.x) {
    int32_t total = 0;
    for (int s = 0; s <= i / call.ranks; ++s) {
      total += *static_cast<volatile int32_t*>(&call.flags[call.rank]->counts[s][i % call.ranks]);
    }
    args.rank_prefix[i] = counts.is_bad ? -1 : total;
  }
  for (int32_t i = threadIdx.x; i < call.ranks * channels; i += blockDim.x) {
    const int32_t d = i / channels, c = i % channels;
    args.of_rank[d].recv_channel_prefix[call.rank * channels + c] =
        c == 0 ? 0 : args.channel_prefix[d * channels + c - 1];
  }
}

// What a warp sends at a time: words [begin, end) of a token's row, with one part of it the rest of
// what belongs to the row.
struct Part {
  int32_t token, begin, end;
  bool has_routing;
};

// Part `item` of all. Rows go in halves, of whole steps of SendPart, so that no warp is long behind
// the others; the routing goes with the shorter one.
__device__ Part PartOf(const DispatchShape& shape, int32_t item) {
  constexpr int32_t kStep = 32 * kInFlight;
  const int32_t steps = (shape.words + kStep - 1) / kStep;
  const int32_t middle = min((steps + 1) / 2 * kStep, shape.words);
  if (item % 2 == 0) return {item / 2, 0, middle, false};
  return {item / 2, middle, shape.words, true};
}

// The lane's slot of a token.
struct Slot {
  int32_t expert;  // -1: unused, or none
  float weight;
};

__device__ Slot SlotOf(const DispatchArgs& args, int32_t token) {
  const int32_t lane = threadIdx.x % 32, top_k = args.shape.top_k;
  if (lane >= top_k) return {-1, 0.0f};
  return {args.topk_idx[int64_t{token} * top_k + lane],
          args.topk_weights[int64_t{token} * top_k + lane]};
}

// A token's routing as rank `d` sees it, and where it comes from; by a warp.
__device__ void SendRouting(const DispatchArgs& args, int32_t token, const Slot& slot, int32_t d,
                            int64_t row) {
  const DispatchShape& shape = args.shape;
  const DispatchResult& to = args.of_rank[d];
  const int32_t lane = threadIdx.x % 32;
  if (lane < shape.top_k) {
    const int32_t local = slot.expert - d * shape.experts_per_rank;
    const bool is_own = local >= 0 && local < shape.experts_per_rank;
    to.topk_idx[row * shape.top_k + lane] = is_own ? local : -1;
    to.topk_weights[row * shape.top_k + lane] = is_own ? slot.weight : 0.0f;
  }
  for (int32_t i = lane; i < shape.scales; i += 32) {
    to.scales[row * shape.scales + i] = args.scales[int64_t{token} * shape.scales + i];
  }
  if (lane == 0) to.src_idx[row] = token;
}

// By a warp.
__device__ void SendPart(const DispatchArgs& args, const Counts& counts, const Part& part) {
  const ExchangeCall& call = args.call;
  const DispatchShape& shape = args.shape;
  const int32_t lane = threadIdx.x % 32;
  const int32_t channel = part.token / ((shape.tokens + shape.channels - 1) / shape.channels);
  int32_t row_on_rank = -1;  // lane d: of the token on rank d
  if (lane < call.ranks) {
    const int32_t head = args.send_head[int64_t{part.token} * call.ranks + lane];
    const int32_t start =
        channel == 0 ? 0 : args.channel_prefix[lane * shape.channels + channel - 1];
    if (head >= 0) row_on_rank = counts.first_row[lane] + start + head;
  }
  const uint32_t going = Ballot(row_on_rank >= 0);
  if (going == 0) return;
  // Asked for before the row: nothing is left to wait for at the end.
  const Slot slot = part.has_routing ? SlotOf(args, part.token) : Slot{-1, 0.0f};
  const uint4* const from = args.x + int64_t{part.token} * shape.words;
  // Lanes past the end take part in the shuffles.
  for (int32_t first = part.begin; first < part.end; first += 32 * kInFlight) {
    uint4 held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t word = first + 32 * i + lane;
      if (word < part.end) held[i] = LoadWord(from + word);
    }
    for (uint32_t left = going; left != 0; left &= left - 1) {
      const int32_t d = __ffs(left) - 1;
      const int64_t row = Shuffle(row_on_rank, d);
      uint4* const to = args.of_rank[d].x + row * shape.words;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t word = first + 32 * i + lane;
        if (word < part.end) StoreWord(to + word, held[i]);
      }
    }
  }
  if (!part.has_routing) return;
  for (uint32_t left = going; left != 0; left &= left - 1) {
    const int32_t d = __ffs(left) - 1;
    SendRouting(args, part.token, slot, d, Shuffle(row_on_rank, d));
  }
}

// The rows of this rank's result that nobody writes.
__device__ void ClearUnused(const DispatchArgs& args, const Counts& counts) {
  const DispatchShape& shape = args.shape;
  const DispatchResult& own = args.of_rank[args.call.rank];
  const int64_t rows = int64_t{shape.tokens} * args.call.ranks, used = counts.used;
  const uint32_t fill = counts.is_bad ? kUselessBits : args.unused_bits;
  FillByGrid(own.x, used * shape.words, rows * shape.words, make_uint4(fill, fill, fill, fill));
  const float fill_float = __uint_as_float(fill);
  FillByGrid(own.scales, used * shape.scales, rows * shape.scales, fill_float);
  FillByGrid(own.topk_weights, used * shape.top_k, rows * shape.top_k, fill_float);
  FillByGrid(own.topk_idx, used * shape.top_k, rows * shape.top_k, -1);
  FillByGrid(own.src_idx, used, rows, -1);
}

__global__ void __launch_bounds__(kSendThreads)
    MoeDispatchSend(const MOEPROF_GRID_CONSTANT DispatchArgs args) {
  __shared__ Counts counts;
  AwaitReady(args.call);
  ReadCounts(args.call, counts);
  if (blockIdx.x == 0) WritePrefixes(args, counts);
  if (!counts.is_bad) {
    const int32_t parts = 2 * args.shape.tokens;
    for (int32_t item = WarpOfGrid(); item < parts; item += WarpsOfGrid()) {
      SendPart(args, counts, PartOf(args.shape, item));
    }
  }
  ClearUnused(args, counts);
  Finish(args.call);
}

// Started while the plan still runs. It touches nothing of the plan's, nor of a peer's, before it
// has seen the flags that plans raise last, its own rank's among them; and the plan itself starts
// only after what is before it in the stream.
gpuError_t LaunchSend(gpuStream_t stream, const DispatchArgs& args, int blocks) {
  return LaunchEarly(stream, MoeDispatchSend, blocks, kSendThreads, args);
}

}  // namespace

gpuError_t LaunchDispatch(gpuStream_t stream, const DispatchArgs& args, int blocks) {
  MoeDispatchPlan<<<args.shape.channels, kPlanThreads, 0, stream>>>(args);
  if (const gpuError_t error = gpuGetLastError(); error != gpuSuccess) return error;
  return LaunchSend(stream, args, blocks);
}

gpuError_t LoadDispatchKernels() {
  const gpuError_t error = gpuLoadKernel(MoeDispatchPlan);
  return error != gpuSuccess ? error : gpuLoadKernel(MoeDispatchSend);
}

}  // namespace moeprof::gpu
