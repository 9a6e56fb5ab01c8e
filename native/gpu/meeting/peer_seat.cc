#include "gpu/meeting/peer_seat.h"

#include <algorithm>
#include <utility>

#include "gpu/exchange/moe_cached_dispatch_launch.h"
#include "gpu/exchange/moe_combine_launch.h"
#include "gpu/exchange/moe_dispatch_launch.h"
#include "gpu/meeting/local_exchange.h"
#include "gpu/processes/process_group.h"

namespace moeprof::gpu {
namespace {

class LocalSeat : public PeerSeat {
 public:
  LocalSeat(std::shared_ptr<LocalExchange> exchange, int32_t rank, int64_t run)
      : exchange_(std::move(exchange)), rank_(rank), run_(run) {}
  int32_t rank() const override { return rank_; }
  const std::vector<ExchangeFlags*>& flags() const override { return exchange_->flags(); }
  const uint32_t* abort_word() const override { return exchange_->abort_word(); }
  std::variant<Met, Failure> Meet(const PeerCall& call,
                                  std::chrono::milliseconds timeout) override {
    return exchange_->Meet(rank_, call, timeout, run_);
  }
  void Refuse(const std::string& op, const std::string& reason,
              std::chrono::milliseconds) override {
    exchange_->Refuse(rank_, op, reason, run_);
  }
  void Fail(const Failure& failure) override { exchange_->End(failure.text); }

 private:
  const std::shared_ptr<LocalExchange> exchange_;
  const int32_t rank_;
  const int64_t run_;
};

class ProcessSeat : public PeerSeat {
 public:
  explicit ProcessSeat(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {
    for (void* flags : group_->exchange->flags()) {
      flags_.push_back(static_cast<ExchangeFlags*>(flags));
    }
  }
  int32_t rank() const override { return group_->exchange->rank(); }
  const std::vector<ExchangeFlags*>& flags() const override { return flags_; }
  const uint32_t* abort_word() const override { return group_->abort_device; }
  std::variant<Met, Failure> Meet(const PeerCall& call,
                                  std::chrono::milliseconds timeout) override {
    auto met = group_->exchange->Meet(call, timeout);
    if (auto* failure = std::get_if<Failure>(&met)) return *failure;
    return Met{group_->exchange->round(), std::move(std::get<ProcessExchange::Pointers>(met))};
  }
  void Refuse(const std::string& op, const std::string& reason,
              std::chrono::milliseconds timeout) override {
    group_->exchange->Refuse(op, reason, timeout);
  }
  void Fail(const Failure& failure) override { group_->exchange->Fail(failure); }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  std::vector<ExchangeFlags*> flags_;
};

// On the current device.
cudaError_t LoadKernels() {
  for (const auto load : {LoadDispatchKernels, LoadCachedDispatchKernel, LoadCombineKernels}) {
    if (const cudaError_t error = load(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

std::variant<std::unique_ptr<PeerSeat>, Failure> FindSeat(const int64_t* groups, int64_t count,
                                                          int64_t ranks, int device, int64_t run) {
  if (ranks < 2 || ranks > kMaxRanks || count % ranks != 0) {
    return Failure{Fault::kInvalidArgument, "expected EP groups of 2 to " +
                                                std::to_string(kMaxRanks) + " ranks, found " +
                                                std::to_string(ranks)};
  }
  if (auto joined = JoinedProcesses()) {
    if (auto complaint = CheckMembers(*joined, groups, count, ranks)) {
      return Failure{Fault::kInvalidArgument, *complaint};
    }
    static const cudaError_t error = LoadKernels();  // a process has one GPU
    if (error != cudaSuccess) {
      return Failure{Fault::kInternal,
                     std::string("loading the exchange kernels: ") + cudaGetErrorName(error)};
    }
    return std::make_unique<ProcessSeat>(std::move(joined));
  }
  const int64_t* const found = std::find(groups, groups + count, device);
  if (found == groups + count) {
    return Failure{Fault::kInvalidArgument,
                   "device " + std::to_string(device) + " is in no EP group of setup()"};
  }
  const int64_t position = found - groups;
  auto made = LocalExchangeOf(groups, count, ranks, position / ranks, LoadKernels);
  if (auto* failure = std::get_if<Failure>(&made)) return *failure;
  auto exchange = std::get<std::shared_ptr<LocalExchange>>(made);
  if (exchange == nullptr) return Failure{Fault::kAborted, "the runtime was reset meanwhile"};
  return std::make_unique<LocalSeat>(std::move(exchange), static_cast<int32_t>(position % ranks),
                                     run);
}

}  // namespace moeprof::gpu
