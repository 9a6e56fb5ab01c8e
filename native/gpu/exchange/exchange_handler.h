// Question: what do the handlers of dispatch, cached dispatch and combine on the GPU have in
// common?
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/meeting/exchange_call.h"
#include "gpu/meeting/peer_seat.h"
#include "gpu/runtime/gpu_runtime.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

// What every handler is told besides its buffers.
struct HandlerCall {
  GpuOp op;
  gpuStream_t stream;
  int device;
  xla::ffi::RunId run;
  int64_t ep_size;
  xla::ffi::Span<const int64_t> groups;  // device ordinals or process indices, ep_size per group
  int64_t timeout_ms;
};

// What a handler makes of its buffers: the complaint, or what to show to the other ranks and how to
// launch.
struct PlannedCall {
  std::string complaint;
  PeerCall call;
  std::function<gpuError_t(const ExchangeCall&, const Met&)> launch;
};
using Planner = std::function<PlannedCall()>;

// Finds the rank, plans, meets the other ranks and launches. Returns what the device reported
// before this call, or with MOEPROF_STRICT=1 what it reports now.
xla::ffi::Error RunExchange(const HandlerCall& call, const Planner& plan);

// Blocks of an exchange kernel: `wanted`, but some multiprocessors stay free. Kernels of NCCL on
// another stream must be able to start while these wait, or two GPUs could wait for each other.
int ExchangeBlocks(int device, int64_t wanted);

inline PeerBuffer AsPeerBuffer(const void* pointer, size_t bytes) {
  return {bytes == 0 ? nullptr : const_cast<void*>(pointer), bytes};
}

}  // namespace moeprof::gpu
