#include "gpu/meeting/process_seat.h"

#include <string>
#include <utility>
#include <vector>

#include "gpu/processes/process_group.h"

namespace moeprof::gpu {
namespace {

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

}  // namespace

std::variant<std::unique_ptr<PeerSeat>, Failure> FindProcessSeat(const int64_t* groups,
                                                                 int64_t count, int64_t ranks) {
  auto joined = JoinedProcesses();
  if (joined == nullptr) return std::unique_ptr<PeerSeat>();
  if (auto complaint = CheckMembers(*joined, groups, count, ranks)) {
    return Failure{Fault::kInvalidArgument, *complaint};
  }
  return std::make_unique<ProcessSeat>(std::move(joined));
}

}  // namespace moeprof::gpu
