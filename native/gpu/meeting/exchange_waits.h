// Question: how does a kernel wait for the other ranks of its call, and tell them where it is?
//
// For device code alone; the flags are those of exchange_flags.h.
#pragma once

#include <cstdint>

#include "gpu/faults/fault_sink.h"
#include "gpu/meeting/exchange_call.h"
#include "gpu/runtime/device_code.h"

namespace moeprof::gpu {

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

}  // namespace moeprof::gpu
