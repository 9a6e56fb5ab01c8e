#include "gpu/processes/process_group.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "gpu/runtime/exchange_flags.h"
#include "gpu/runtime/runtime_failure.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};
constexpr std::chrono::seconds kLastWait{20};  // the hosts have met: the peers' kernels are queued

// Raises the abort word of a group that can no longer be used.
class Watcher {
 public:
  static void Raise(ProcessGroup& group) {
    __atomic_store_n(group.abort_host, 1, __ATOMIC_RELEASE);
  }

  explicit Watcher(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)), thread_([this] { Watch(); }) {}

  ~Watcher() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  void Watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [this] { return is_over_; })) {
      const Outcome trouble = group_->exchange->Trouble();
      if (!trouble) continue;
      Raise(*group_);
      return;
    }
  }

  const std::shared_ptr<ProcessGroup> group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses the others
};

struct Joined {
  std::mutex mutex;
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<Watcher> watcher;
};

Joined& TheJoined() {
  // Never destroyed: at process exit threads of XLA may still be inside.
  static Joined* const joined = new Joined;
  return *joined;
}

Outcome AllocateAbortWord(ProcessGroup& group) {
  void* host = nullptr;
  void* device = nullptr;
  cudaError_t error = cudaHostAlloc(&host, sizeof(uint32_t), cudaHostAllocMapped);
  if (error == cudaSuccess) {
    group.abort_host = static_cast<uint32_t*>(host);
    *group.abort_host = 0;
    error = cudaHostGetDevicePointer(&device, host, 0);
  }
  if (error != cudaSuccess) {
    return RuntimeFailure("memory for the word that ends waits", error);
  }
  group.abort_device = static_cast<uint32_t*>(device);
  return std::nullopt;
}

Outcome Join(const std::string& token, std::vector<int64_t> members, int64_t own_process,
             int64_t device, milliseconds timeout) {
  const auto own = std::find(members.begin(), members.end(), own_process);
  if (own == members.end()) {
    return Failure{Fault::kInvalidArgument, "this process is not in its EP group"};
  }
  Joined& joined = TheJoined();
  std::lock_guard<std::mutex> lock(joined.mutex);
  if (joined.group != nullptr) {
    return Failure{Fault::kInvalidArgument, "this process has joined an EP group already"};
  }
  auto group = std::make_shared<ProcessGroup>();
  auto exchange = ProcessExchange::Join(token, static_cast<int>(own - members.begin()),
                                        static_cast<int>(members.size()), static_cast<int>(device),
                                        sizeof(ExchangeFlags), timeout);
  if (auto* failure = std::get_if<Failure>(&exchange)) return *failure;
  group->exchange = std::move(std::get<std::unique_ptr<ProcessExchange>>(exchange));
  group->members = std::move(members);
  if (auto failure = AllocateAbortWord(*group)) return group->exchange->Fail(*failure);
  joined.watcher = std::make_unique<Watcher>(group);
  joined.group = std::move(group);
  return std::nullopt;
}

void Leave() {
  Joined& joined = TheJoined();
  std::shared_ptr<ProcessGroup> group;
  {
    std::lock_guard<std::mutex> lock(joined.mutex);
    group = std::move(joined.group);
    joined.group.reset();
  }
  if (group == nullptr) return;
  // Kernels that wait for a peer may go on until it has come, if that is soon. The watcher ends
  // them where it is gone.
  std::future<void> drained = std::async(std::launch::async, [&] { group->exchange->Drain(); });
  if (drained.wait_for(kLastWait) == std::future_status::timeout) Watcher::Raise(*group);
  drained.wait();
  group->exchange->Leave();
  std::lock_guard<std::mutex> lock(joined.mutex);
  joined.watcher.reset();
  // The group ends here, or with the call that still holds it.
}

}  // namespace

ProcessGroup::~ProcessGroup() {
  exchange.reset();  // waits for kernels that look at the word
  if (abort_host != nullptr) cudaFreeHost(abort_host);
}

std::shared_ptr<ProcessGroup> JoinedProcesses() {
  Joined& joined = TheJoined();
  std::lock_guard<std::mutex> lock(joined.mutex);
  return joined.group;
}

std::optional<std::string> CheckMembers(const ProcessGroup& group, const int64_t* groups,
                                        int64_t count, int64_t ranks_per_group) {
  const auto& members = group.members;
  if (ranks_per_group == static_cast<int64_t>(members.size())) {
    for (int64_t i = 0; i + ranks_per_group <= count; i += ranks_per_group) {
      if (std::equal(members.begin(), members.end(), groups + i)) return std::nullopt;
    }
  }
  return "the EP group that this process joined in setup() is none of the program's";
}

}  // namespace moeprof::gpu

int MoeprofGpuJoinProcesses(const char* token, const int64_t* members, int64_t ranks,
                            int64_t own_process, int64_t device, int64_t timeout_ms, char* text,
                            int64_t size) {
  using moeprof::Failure;
  using moeprof::Fault;
  moeprof::Outcome outcome;
  try {
    outcome = moeprof::gpu::Join(token, {members, members + ranks}, own_process, device,
                                 std::chrono::milliseconds(timeout_ms));
  } catch (const std::exception& error) {
    outcome = Failure{Fault::kInternal, error.what()};
  }
  if (!outcome) return 0;
  if (size > 0) std::snprintf(text, static_cast<size_t>(size), "%s", outcome->text.c_str());
  return static_cast<int>(outcome->fault) + 1;
}

void MoeprofGpuLeaveProcesses() { moeprof::gpu::Leave(); }
