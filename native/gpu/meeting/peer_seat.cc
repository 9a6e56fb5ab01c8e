#include "gpu/meeting/peer_seat.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "gpu/meeting/local_exchange.h"
#include "gpu/meeting/process_seat.h"
#include "gpu/runtime/runtime_failure.h"

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

// Loads the kernels on the GPU of this process, which has one. After a failure the next call tries
// again.
Outcome LoadOnce(gpuError_t (*load)()) {
  static std::mutex mutex;
  static bool is_loaded = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (is_loaded) return std::nullopt;
  if (const gpuError_t error = load(); error != gpuSuccess) {
    return RuntimeFailure("loading the exchange kernels", error);
  }
  is_loaded = true;
  return std::nullopt;
}

}  // namespace

std::variant<std::unique_ptr<PeerSeat>, Failure> FindSeat(const int64_t* groups, int64_t count,
                                                          int64_t ranks, int device, int64_t run,
                                                          gpuError_t (*load)()) {
  if (ranks < 1 || ranks > kMaxRanks || count % ranks != 0) {
    return Failure{Fault::kInvalidArgument, "expected EP groups of 1 to " +
                                                std::to_string(kMaxRanks) + " ranks, found " +
                                                std::to_string(ranks)};
  }
  auto of_process = FindProcessSeat(groups, count, ranks);
  if (std::holds_alternative<Failure>(of_process)) return of_process;
  if (std::get<std::unique_ptr<PeerSeat>>(of_process) != nullptr) {
    if (auto failure = LoadOnce(load)) return *failure;
    return of_process;
  }
  const int64_t* const found = std::find(groups, groups + count, device);
  if (found == groups + count) {
    return Failure{Fault::kInvalidArgument,
                   "device " + std::to_string(device) + " is in no EP group of setup()"};
  }
  const int64_t position = found - groups;
  auto made = LocalExchangeOf(groups, count, ranks, position / ranks, load);
  if (auto* failure = std::get_if<Failure>(&made)) return *failure;
  auto exchange = std::get<std::shared_ptr<LocalExchange>>(made);
  if (exchange == nullptr) return Failure{Fault::kAborted, "the runtime was reset meanwhile"};
  return std::make_unique<LocalSeat>(std::move(exchange), static_cast<int32_t>(position % ranks),
                                     run);
}

}  // namespace moeprof::gpu
