// Question: how do the GPUs of an EP group tell each other where they are in a call?
//
// Every rank owns one ExchangeFlags in its GPU's memory, zeroed once and mapped by all ranks. A
// rank writes into its peers' flags and waits on its own, so that waiting costs no link traffic.
// Calls of a group are numbered from 1; every flag holds the number of the last call it was raised
// for and only grows, so nothing is ever cleared.
//
//   ready[r]   rank r's inputs of call n are complete, and its output buffers are free
//   done[r]    rank r has written into my memory, or read from it, all that call n asks for
//
// A kernel that has seen every `done` may end: XLA may then reuse the call's buffers. Counts of one
// dispatch are not overwritten by the next: a peer makes those only after this rank is `done`.
#pragma once

#include <cstdint>

#include "gpu/faults/fault_report.h"
#if defined(MOEPROF_DEVICE_CODE)
#include "gpu/faults/fault_sink.h"
#include "gpu/runtime/device_code.h"
#endif

namespace moeprof::gpu {

constexpr int kMaxRanks = 8;

struct ExchangeFlags {
  uint64_t ready[kMaxRanks];
  uint64_t done[kMaxRanks];
  int32_t counts[kMaxRanks][kMaxRanks];  // [source][destination] rows of a dispatch; below 0: none
                                         // can be told, the source's routing is not sound
  // Of this rank's own kernels: how many blocks have finished, and whether one found a fault.
  uint32_t plan_ticket, last_ticket;
  uint32_t plan_is_bad;
};

// One rank's place in one call.
struct ExchangeCall {
  ExchangeFlags* flags[kMaxRanks];  // of every rank
  int32_t rank, ranks;
  uint64_t number;
  uint64_t timeout_ns;
  const uint32_t* abort;  // in host memory, or null; not 0: a rank is gone, give up
  GpuOp op;
  FaultSink faults;
};

#if defined(MOEPROF_DEVICE_CODE)

// Many threads give up at once, and the first to trap ends the one that writes the report. Waits
// until it is complete, at most a second.
__device__ inline void AwaitReport(const FaultRecord* record) {
  const volatile int32_t* const complete = &record->complete;
  const uint64_t start = GlobalNanoseconds();
  while (*complete == 0 && GlobalNanoseconds() - start < 1'000'000'000) {
  }
}

// Waits until `flag`, raised by rank `peer`, has reached this call. A peer that does not come ends
// the program: its rows are missing, and nothing after this could be right.
__device__ __forceinline__ void WaitForPeer(const ExchangeCall& call, const uint64_t* flag,
                                            int32_t peer) {
  if (LoadAcquireSystem(flag) >= call.number) return;
  const uint64_t start = GlobalNanoseconds();
  for (uint32_t turn = 1;; ++turn) {
    const uint64_t seen = LoadAcquireSystem(flag);
    if (seen >= call.number) return;
    if (turn % 256 != 0) continue;
    const bool aborted =
        call.abort != nullptr && *static_cast<const volatile uint32_t*>(call.abort) != 0;
    if (!aborted && GlobalNanoseconds() - start < call.timeout_ns) continue;
    // A peer may have raised the flag last of all, and then left the group.
    if (aborted && LoadAcquireSystem(flag) >= call.number) return;
    ReportFault(call.faults, call.op, aborted ? FaultKind::kGivenUp : FaultKind::kPeerLate,
                call.rank, peer, static_cast<int64_t>(seen), static_cast<int64_t>(call.number),
                static_cast<int64_t>(call.timeout_ns));
    AwaitReport(call.faults.record);
    StopKernel();
  }
}

// Tells rank `peer` that this one is ready. What this thread wrote, and what stream order made
// complete before this kernel, is then complete for the peer.
__device__ __forceinline__ void RaiseReadyFor(const ExchangeCall& call, int32_t peer) {
  StoreReleaseSystem(&call.flags[peer]->ready[call.rank], call.number);
}

// Tells every rank; by one block.
__device__ __forceinline__ void RaiseReady(const ExchangeCall& call) {
  if (threadIdx.x < static_cast<uint32_t>(call.ranks)) RaiseReadyFor(call, threadIdx.x);
}

// Waits for all ranks to be ready. By all threads of a block.
__device__ __forceinline__ void AwaitReady(const ExchangeCall& call) {
  if (threadIdx.x < static_cast<uint32_t>(call.ranks)) {
    WaitForPeer(call, &call.flags[call.rank]->ready[threadIdx.x], threadIdx.x);
  }
  __syncthreads();
}

// True in the last block of the grid to come here, for all its threads; what the other blocks
// wrote before is then visible. `ticket` is 0 again afterwards.
__device__ __forceinline__ bool IsLastBlock(uint32_t* ticket) {
  __shared__ bool is_last;
  ReleaseBeforeBarrier();
  __syncthreads();
  if (threadIdx.x == 0) {
    FenceSystem();
    is_last = CountUpTo(ticket, gridDim.x - 1) == gridDim.x - 1;
    FenceSystem();
  }
  __syncthreads();
  return is_last;
}

// Ends a call: once all blocks of all ranks have done their share. By all threads of all blocks.
__device__ __forceinline__ void Finish(const ExchangeCall& call) {
  if (!IsLastBlock(&call.flags[call.rank]->last_ticket)) return;
  if (threadIdx.x < static_cast<uint32_t>(call.ranks)) {
    StoreReleaseSystem(&call.flags[threadIdx.x]->done[call.rank], call.number);
    WaitForPeer(call, &call.flags[call.rank]->done[threadIdx.x], threadIdx.x);
  }
}

#endif  // defined(MOEPROF_DEVICE_CODE)

}  // namespace moeprof::gpu
