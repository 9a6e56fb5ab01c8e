// Question: how do the GPUs of one process that form an EP group see each other's buffers?
//
// XLA runs each GPU's program in a thread of its own. At each call of an operation those threads
// meet: every rank says which operation of which sizes it runs and where its buffers are, and gets
// the buffers of all. The n-th call of one rank meets the n-th of the others.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "gpu/exchange_flags.h"
#include "gpu/peer_seat.h"

namespace moeprof::gpu {

class LocalExchange {
 public:
  using Made = std::variant<std::shared_ptr<LocalExchange>, Failure>;

  // For these CUDA devices in rank order: opens their memory to each other, loads the kernels on
  // each of them and allocates their flags and records of faults. `load` loads kernels on the
  // current device.
  static Made Make(std::vector<int64_t> devices, cudaError_t (*load)());

  ~LocalExchange();
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;

  const std::vector<int64_t>& devices() const { return devices_; }
  const std::vector<ExchangeFlags*>& flags() const { return flags_; }

  // Takes part in the rank's next call. A rank that does not come within `timeout` fails the group
  // for good; one that refuses, or comes with another operation, fails that call.
  std::variant<Met, Failure> Meet(int32_t rank, const PeerCall& call,
                                  std::chrono::milliseconds timeout);

  // The rank cannot take part in its next call, which fails for all.
  void Refuse(int32_t rank, const std::string& op, const std::string& reason);

  // Fails whoever waits, and every later call.
  void Abort(const std::string& reason);

 private:
  // One call while ranks are still to come or to leave.
  struct Gathering {
    std::vector<PeerCall> calls;
    std::vector<bool> has_come;
    int32_t come = 0, left = 0;
    Outcome failure;
    std::atomic<bool> is_settled{false};  // all have come, or it has failed
  };

  explicit LocalExchange(std::vector<int64_t> devices) : devices_(std::move(devices)) {}
  Outcome Prepare(size_t rank, cudaError_t (*load)());
  Gathering& Arrive(int32_t rank);
  void Leave(uint64_t number);
  std::string Missing(const Gathering& gathering, int32_t rank, const char* op, uint64_t number,
                      std::chrono::milliseconds timeout) const;

  const std::vector<int64_t> devices_;
  std::vector<ExchangeFlags*> flags_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Gathering> gathering_;  // by the call's number
  std::vector<uint64_t> number_;             // of each rank's last call
  Outcome failure_;                          // of the group
};

// The exchange of a group; made, with those of all `groups`, when first asked for. `groups` are
// device ordinals, `ranks` per group, in rank order.
LocalExchange::Made LocalExchangeOf(const int64_t* groups, int64_t count, int64_t ranks,
                                    int64_t group, cudaError_t (*load)());

// Fails whoever waits in any group, and forgets all groups.
void ForgetLocalExchanges();

}  // namespace moeprof::gpu
