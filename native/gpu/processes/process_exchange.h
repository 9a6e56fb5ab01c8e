// Question: how do the processes of an EP group see each other's buffers, call by call?
//
// Joining makes the links, the board and one piece of GPU memory per rank for flags, which all
// ranks map. Then each call of an operation meets on the board: every rank says which operation of
// which sizes it runs and where its buffers are, and gets the buffers of all ranks as addresses
// that its own GPU can use.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "gpu/processes/memory_exports.h"
#include "gpu/processes/memory_imports.h"
#include "gpu/processes/process_board.h"
#include "gpu/runtime/driver_calls.h"
#include "gpu/runtime/peer_call.h"

namespace moeprof::gpu {

class ProcessExchange {
 public:
  // [rank][buffer], own pointers as they are.
  using Pointers = std::vector<std::vector<void*>>;
  using Joined = std::variant<std::unique_ptr<ProcessExchange>, Failure>;

  // Joins rank `rank` of `ranks` processes with the same token, for CUDA device `device` of this
  // process. Every rank gets `flag_bytes` of zeroed GPU memory that all ranks map.
  static Joined Join(const std::string& token, int rank, int ranks, int device, size_t flag_bytes,
                     std::chrono::milliseconds timeout);

  // Waits for this device's kernels.
  void Drain() const;

  // Tells the others that this rank leaves; whoever waits for it, here or there, fails.
  void Leave();

  // Drains and leaves. The flags are freed only once all peers have left as well: their kernels may
  // still write there. Where they do not within a second, the memory stays until the process ends.
  ~ProcessExchange();
  ProcessExchange(const ProcessExchange&) = delete;
  ProcessExchange& operator=(const ProcessExchange&) = delete;

  int rank() const { return board_->link().rank(); }
  int ranks() const { return board_->link().ranks(); }
  int device() const { return device_; }

  // The flags of every rank.
  const std::vector<void*>& flags() const { return flags_; }

  // One call. The device must be current.
  std::variant<Pointers, Failure> Meet(const PeerCall& call, std::chrono::milliseconds timeout);

  // The number of the last call that this rank took part in, refused ones and setup included. Equal
  // in all ranks that are at the same call, and it only grows.
  uint64_t round() const { return board_->round(); }

  // This rank cannot take part in its next call, which fails for all. Returns what they see.
  Failure Refuse(const std::string& op, const std::string& reason,
                 std::chrono::milliseconds timeout) {
    return board_->Refuse(op, reason, timeout);
  }

  // Fails the group for all ranks, unless it has failed before.
  Failure Fail(const Failure& failure) { return board_->Fail(failure); }

  // Why the group can no longer be used: it has failed, or a rank's process has ended or left.
  Outcome Trouble() const;

 private:
  ProcessExchange(std::unique_ptr<ProcessBoard> board, const DriverCalls& driver, int device);
  Outcome ShareFlags(size_t flag_bytes, std::chrono::milliseconds timeout);
  std::variant<std::string, Failure> ToPayload(const PeerCall& call, Deadline deadline);
  std::variant<Pointers, Failure> ToPointers(const PeerCall& call,
                                             const std::vector<std::string>& payloads,
                                             Deadline deadline);
  bool AllHaveLeft() const;

  const std::unique_ptr<ProcessBoard> board_;
  const DriverCalls& driver_;
  const int device_;
  MemoryExports exports_;
  std::vector<std::unique_ptr<MemoryImports>> imports_;  // by rank; none for the own
  std::vector<void*> flags_;
  void* own_flags_ = nullptr;
};

}  // namespace moeprof::gpu
