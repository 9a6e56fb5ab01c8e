// Question: how do the GPUs of one process that form an EP group see each other's buffers?
//
// XLA runs each GPU's program in a thread of its own. At each call of an operation those threads
// meet: every rank says which operation of which sizes it runs and where its buffers are, and gets
// the buffers of all. The n-th call of one rank in a program's run meets the n-th of the others in
// that run: a rank whose program failed elsewhere does not shift the calls of the next.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/failure.h"
#include "gpu/runtime/exchange_flags.h"
#include "gpu/runtime/gpu_runtime.h"
#include "gpu/runtime/peer_call.h"

namespace moeprof::gpu {

class LocalExchange {
 public:
  using Made = std::variant<std::shared_ptr<LocalExchange>, Failure>;

  // For these CUDA devices in rank order: opens their memory to each other, loads the kernels on
  // each of them and allocates their flags and records of faults. `load` loads kernels on the
  // current device.
  static Made Make(std::vector<int64_t> devices, gpuError_t (*load)());

  ~LocalExchange();
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;

  const std::vector<int64_t>& devices() const { return devices_; }
  const std::vector<ExchangeFlags*>& flags() const { return flags_; }

  // Takes part in the rank's next call of `run`, which no other execution of a program has. A rank
  // that does not come within `timeout`, has left the run, refuses, or comes with another operation
  // fails that call for all.
  std::variant<Met, Failure> Meet(int32_t rank, const PeerCall& call,
                                  std::chrono::milliseconds timeout, int64_t run = 0);

  // The rank cannot take part in its next call, which fails for all.
  void Refuse(int32_t rank, const std::string& op, const std::string& reason, int64_t run = 0);

  // Fails whoever waits, and every later call. Kernels go on.
  void Abort(const std::string& reason);

  // The same, and ends the kernels that wait for a peer: a rank has met and launched nothing.
  void End(const std::string& reason);

  // For kernels that wait; not 0 after End.
  const uint32_t* abort_word() const { return abort_word_; }

 private:
  using Key = std::pair<int64_t, uint64_t>;  // a run and the call's number in it

  // One call while ranks are still to come or to leave.
  struct Gathering {
    std::vector<PeerCall> calls;
    std::vector<bool> has_come;
    int32_t come = 0, left = 0;
    uint64_t number = 0;  // among those for which all came
    Outcome failure;
    std::atomic<bool> is_settled{false};  // all have come, or it has failed
  };

  // Where a rank came last.
  struct Place {
    std::optional<int64_t> run;
    std::deque<int64_t> runs_left;  // the last ones
    uint64_t call = 0;
    int64_t faults = 0;  // that its GPU had reported then
  };

  explicit LocalExchange(std::vector<int64_t> devices) : devices_(std::move(devices)) {}
  bool IsComplete(const Gathering& gathering) const {
    return gathering.come == static_cast<int32_t>(devices_.size()) && !gathering.failure;
  }
  Outcome Prepare(size_t rank, gpuError_t (*load)());
  Gathering& Arrive(int32_t rank, int64_t run);
  void Compare(Gathering& gathering, int32_t rank);
  void FailIfLeft(Gathering& gathering, int64_t run);
  void FailIfFaulty(Gathering& gathering, int64_t run);
  void Fail(Gathering& gathering, const Failure& failure);
  void Leave(const Key& key);
  void ForgetFailed();
  std::string NameOf(size_t rank) const;
  std::string Missing(const Gathering& gathering, std::chrono::milliseconds timeout) const;

  const std::vector<int64_t> devices_;
  std::vector<ExchangeFlags*> flags_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Gathering> gathering_;
  std::vector<Place> places_;  // of each rank
  uint64_t complete_ = 0;      // calls for which all came
  uint32_t* abort_word_ = nullptr;
  Outcome failure_;  // of the group
};

// The exchange of a group; made, with those of all `groups`, when first asked for. `groups` are
// device ordinals, `ranks` per group, in rank order.
LocalExchange::Made LocalExchangeOf(const int64_t* groups, int64_t count, int64_t ranks,
                                    int64_t group, gpuError_t (*load)());

}  // namespace moeprof::gpu

extern "C" {

// Fails whoever waits in any group of this process's GPUs, and forgets all such groups. Called by
// Python.
__attribute__((visibility("default"))) void MoeprofGpuAbortLocalExchanges();
}
