// Question: which rank of which EP group is this call, and how does it meet the others?
//
// The same for ranks that are GPUs of one process and for ranks that are processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/failure.h"
#include "gpu/runtime/exchange_flags.h"
#include "gpu/runtime/gpu_runtime.h"
#include "gpu/runtime/peer_call.h"

namespace moeprof::gpu {

class PeerSeat {
 public:
  virtual ~PeerSeat() = default;
  virtual int32_t rank() const = 0;
  virtual const std::vector<ExchangeFlags*>& flags() const = 0;  // of all ranks
  virtual const uint32_t* abort_word() const = 0;                // for kernels that wait, or null
  virtual std::variant<Met, Failure> Meet(const PeerCall& call,
                                          std::chrono::milliseconds timeout) = 0;
  // This rank cannot take part in its next call, which fails for all. Waits, where it must, only
  // for ranks that are a call behind.
  virtual void Refuse(const std::string& op, const std::string& reason,
                      std::chrono::milliseconds timeout) = 0;
  // The call failed on this rank after its meeting: ends the group, and kernels that wait for it.
  virtual void Fail(const Failure& failure) = 0;

  int32_t ranks() const { return static_cast<int32_t>(flags().size()); }
};

// The seat of CUDA device `device`: in the group of processes that this process has joined, else
// in one of `groups` (device ordinals, `ranks` per group, in rank order). The device is current;
// `run` is the execution of the program, the same on all devices of a process. `load` loads the
// kernels on the current device; they are, before any rank of the group can meet another.
std::variant<std::unique_ptr<PeerSeat>, Failure> FindSeat(const int64_t* groups, int64_t count,
                                                          int64_t ranks, int device, int64_t run,
                                                          gpuError_t (*load)());

}  // namespace moeprof::gpu
