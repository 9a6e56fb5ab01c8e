#include "gpu/meeting/local_exchange.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "common/seconds_text.h"
#include "gpu/faults/fault_report.h"
#include "gpu/runtime/device_memory.h"
#include "gpu/runtime/gpu_runtime.h"
#include "gpu/runtime/on_device.h"
#include "gpu/runtime/runtime_failure.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;

// Lets the current device reach the memory of `peer`.
Outcome OpenPeer(int64_t device, int64_t peer) {
  int can = 0;
  const gpuError_t asked =
      gpuDeviceCanAccessPeer(&can, static_cast<int>(device), static_cast<int>(peer));
  if (asked != gpuSuccess) return RuntimeFailure("asking for peer access", asked);
  if (can == 0) {
    return Failure{Fault::kInvalidArgument,
                   "GPU " + std::to_string(device) + " cannot reach the memory of GPU " +
                       std::to_string(peer) +
                       ": expected NVLink or PCIe peer access between the GPUs of an EP group"};
  }
  const gpuError_t error = gpuDeviceEnablePeerAccess(static_cast<int>(peer));
  if (error == gpuErrorPeerAccessAlreadyEnabled) {
    (void)gpuGetLastError();
    return std::nullopt;
  }
  if (error != gpuSuccess) return RuntimeFailure("opening peer access", error);
  return std::nullopt;
}

// The threads of a group mostly come within microseconds of each other, and waking one that sleeps
// takes longer than that.
constexpr std::chrono::microseconds kSpin{50};

// How often a rank that waits looks whether another has failed.
constexpr milliseconds kLook{100};

constexpr size_t kMostFailedCalls = 64, kMostRunsLeft = 64;

void SpinUntil(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!flag.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
}

std::string Text(const PeerCall& call) {
  std::string text = call.op + " of sizes (";
  for (size_t i = 0; i < call.signature.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(call.signature[i]);
  }
  return text + ")";
}

}  // namespace

LocalExchange::Made LocalExchange::Make(std::vector<int64_t> devices, gpuError_t (*load)()) {
  std::shared_ptr<LocalExchange> made(new LocalExchange(std::move(devices)));
  made->places_.resize(made->devices_.size());
  for (size_t rank = 0; rank < made->devices_.size(); ++rank) {
    if (auto failure = made->Prepare(rank, load)) return *failure;
  }
  void* word = nullptr;
  const gpuError_t error = gpuHostAllocMapped(&word, sizeof(uint32_t));
  if (error != gpuSuccess) return RuntimeFailure("memory for the word that ends waits", error);
  made->abort_word_ = new (word) uint32_t{0};
  return made;
}

Outcome LocalExchange::Prepare(size_t rank, gpuError_t (*load)()) {
  const OnDevice scope(static_cast<int>(devices_[rank]));
  if (scope.error() != gpuSuccess) return RuntimeFailure("making the GPU current", scope.error());
  for (const int64_t peer : devices_) {
    if (peer == devices_[rank]) continue;
    if (auto failure = OpenPeer(devices_[rank], peer)) return failure;
  }
  if (const gpuError_t error = load(); error != gpuSuccess) {
    return RuntimeFailure("loading the exchange kernels", error);
  }
  const auto sink = SinkOfCurrentDevice();
  if (auto* failure = std::get_if<Failure>(&sink)) return *failure;
  const auto memory = AllocateZeroed(sizeof(ExchangeFlags));
  if (auto* error = std::get_if<gpuError_t>(&memory)) {
    return RuntimeFailure("memory for the flags", *error);
  }
  flags_.push_back(static_cast<ExchangeFlags*>(std::get<void*>(memory)));
  return std::nullopt;
}

LocalExchange::~LocalExchange() {
  // Kernels of peers may still write the flags of a rank that has ended.
  for (const int64_t device : devices_) {
    const OnDevice scope(static_cast<int>(device));
    (void)gpuDeviceSynchronize();
  }
  for (size_t rank = 0; rank < flags_.size(); ++rank) {
    const OnDevice scope(static_cast<int>(devices_[rank]));
    (void)gpuFree(flags_[rank]);
  }
  (void)gpuFreeHost(abort_word_);
}

LocalExchange::Gathering& LocalExchange::Arrive(int32_t rank, int64_t run) {
  Place& place = places_[rank];
  if (place.run == run) {
    ++place.call;
  } else {
    if (place.run) place.runs_left.push_back(*place.run);
    if (place.runs_left.size() > kMostRunsLeft) place.runs_left.pop_front();
    place.run = run;
    place.call = 0;
    for (auto& [key, waiting] : gathering_) FailIfLeft(waiting, key.first);
    ForgetFailed();
  }
  place.faults = FaultsTakenFrom(static_cast<int>(devices_[rank])).count;
  Gathering& gathering = gathering_[{run, place.call}];
  if (gathering.has_come.empty()) {
    gathering.calls.resize(devices_.size());
    gathering.has_come.resize(devices_.size());
  }
  gathering.has_come[rank] = true;
  ++gathering.come;
  return gathering;
}

void LocalExchange::Leave(const Key& key) {
  const auto found = gathering_.find(key);
  if (found == gathering_.end()) return;
  if (++found->second.left == static_cast<int32_t>(devices_.size())) gathering_.erase(found);
}

void LocalExchange::Fail(Gathering& gathering, const Failure& failure) {
  if (!gathering.failure) gathering.failure = failure;
  gathering.is_settled.store(true, std::memory_order_release);
  changed_.notify_all();
}

// Failed calls are kept for ranks still to come; of old ones there are none.
void LocalExchange::ForgetFailed() {
  for (auto it = gathering_.begin();
       it != gathering_.end() && gathering_.size() > kMostFailedCalls;) {
    const Gathering& gathering = it->second;
    it = gathering.failure && gathering.left == gathering.come ? gathering_.erase(it) : ++it;
  }
}

void LocalExchange::Compare(Gathering& gathering, int32_t rank) {
  const PeerCall& call = gathering.calls[rank];
  for (size_t r = 0; r < devices_.size() && !gathering.failure; ++r) {
    const PeerCall& other = gathering.calls[r];
    if (!gathering.has_come[r] || (other.op == call.op && other.signature == call.signature)) {
      continue;
    }
    Fail(gathering,
         {Fault::kInvalidArgument, call.op + ": all ranks must make the same call, " + "rank " +
                                       std::to_string(rank) + " makes " + Text(call) + ", rank " +
                                       std::to_string(r) + " " + Text(other)});
  }
}

// A rank runs one program after the other: one that was in a run and is in another does not return.
void LocalExchange::FailIfLeft(Gathering& gathering, int64_t run) {
  for (size_t r = 0; r < devices_.size() && !gathering.failure; ++r) {
    const std::deque<int64_t>& left = places_[r].runs_left;
    if (gathering.has_come[r] || std::find(left.begin(), left.end(), run) == left.end()) continue;
    Fail(gathering, {Fault::kAborted,
                     "EP rank " + NameOf(r) + " has left this run of the program for another"});
  }
}

// What a rank's GPU reported since the rank was last in this run has ended the run there.
void LocalExchange::FailIfFaulty(Gathering& gathering, int64_t run) {
  for (size_t r = 0; r < devices_.size() && !gathering.failure; ++r) {
    if (gathering.has_come[r] || places_[r].run != run) continue;
    const FaultsTaken taken = FaultsTakenFrom(static_cast<int>(devices_[r]));
    if (taken.count == places_[r].faults) continue;
    Fail(gathering, {Fault::kAborted, "EP rank " + NameOf(r) + " failed: " + taken.last});
  }
}

std::string LocalExchange::NameOf(size_t rank) const {
  return std::to_string(rank) + " (device " + std::to_string(devices_[rank]) + ")";
}

std::string LocalExchange::Missing(const Gathering& gathering, milliseconds timeout) const {
  std::string missing, present;
  for (size_t r = 0; r < devices_.size(); ++r) {
    std::string& names = gathering.has_come[r] ? present : missing;
    names += (names.empty() ? "" : ", ") + NameOf(r);
  }
  return "EP rank " + missing + " did not arrive within " + SecondsText(timeout) + ": expected " +
         std::to_string(devices_.size()) + " ranks, got " + std::to_string(gathering.come) + ": " +
         present +
         ". All ranks of a group must run the same dispatches and combines (look for a lax.cond "
         "whose branch differs between ranks); MOEPROF_EP_TIMEOUT_S sets the wait";
}

std::variant<Met, Failure> LocalExchange::Meet(int32_t rank, const PeerCall& call,
                                               milliseconds timeout, int64_t run) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock<std::mutex> lock(mutex_);
  if (failure_) return *failure_;
  Gathering& gathering = Arrive(rank, run);
  const Key key{run, places_[rank].call};
  gathering.calls[rank] = call;
  Compare(gathering, rank);
  FailIfLeft(gathering, run);
  if (IsComplete(gathering)) {
    gathering.number = ++complete_;
    gathering.is_settled.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  // The gathering lasts until this rank has left it.
  lock.unlock();
  SpinUntil(gathering.is_settled);
  lock.lock();
  const auto is_settled = [&] {
    return failure_ || gathering.is_settled.load(std::memory_order_acquire);
  };
  while (!is_settled()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) {
      Fail(gathering, {Fault::kDeadlineExceeded, call.op + ": " + Missing(gathering, timeout)});
    } else if (!changed_.wait_until(lock, std::min(deadline, now + kLook), is_settled)) {
      FailIfFaulty(gathering, run);
    }
  }
  // A call for which all came stands: the others launch it, whatever has failed since.
  if (!IsComplete(gathering) && failure_) return *failure_;
  std::variant<Met, Failure> result;
  if (gathering.failure) {
    result = *gathering.failure;
  } else {
    Met met{gathering.number, {}};
    for (const PeerCall& other : gathering.calls) {
      met.pointers.emplace_back();
      for (const PeerBuffer& buffer : other.buffers) met.pointers.back().push_back(buffer.pointer);
    }
    result = std::move(met);
  }
  Leave(key);
  return result;
}

void LocalExchange::Refuse(int32_t rank, const std::string& op, const std::string& reason,
                           int64_t run) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_) return;
  Fail(Arrive(rank, run),
       {Fault::kAborted, op + ": EP rank " + NameOf(rank) + " failed: " + reason});
  Leave({run, places_[rank].call});
}

void LocalExchange::Abort(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_ = Failure{Fault::kAborted, reason};
  changed_.notify_all();
}

void LocalExchange::End(const std::string& reason) {
  Abort(reason);
  __atomic_store_n(abort_word_, 1, __ATOMIC_RELEASE);
}

namespace {

struct Exchanges {
  std::mutex making, mutex;  // in this order; `making` may be held for as long as a GPU takes
  std::map<std::vector<int64_t>, std::shared_ptr<LocalExchange>> of_devices;

  std::shared_ptr<LocalExchange> Find(const std::vector<int64_t>& devices) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = of_devices.find(devices);
    return found == of_devices.end() ? nullptr : found->second;
  }
};

Exchanges& TheExchanges() {
  // Never destroyed: at process exit threads of XLA may still be inside.
  static Exchanges* const exchanges = new Exchanges;
  return *exchanges;
}

}  // namespace

LocalExchange::Made LocalExchangeOf(const int64_t* groups, int64_t count, int64_t ranks,
                                    int64_t group, gpuError_t (*load)()) {
  Exchanges& exchanges = TheExchanges();
  const auto members = [&](int64_t g) {
    return std::vector<int64_t>(groups + g * ranks, groups + (g + 1) * ranks);
  };
  if (auto found = exchanges.Find(members(group))) return found;
  // All at once, before any kernel waits: allocation and loading may wait for a GPU to be idle.
  std::lock_guard<std::mutex> making(exchanges.making);
  for (int64_t g = 0; g < count / ranks; ++g) {
    if (exchanges.Find(members(g))) continue;
    auto made = LocalExchange::Make(members(g), load);
    if (std::holds_alternative<Failure>(made)) return made;
    std::lock_guard<std::mutex> lock(exchanges.mutex);
    exchanges.of_devices[members(g)] = std::get<std::shared_ptr<LocalExchange>>(made);
  }
  return exchanges.Find(members(group));
}

}  // namespace moeprof::gpu

void MoeprofGpuAbortLocalExchanges() {
  auto& exchanges = moeprof::gpu::TheExchanges();
  decltype(exchanges.of_devices) forgotten;
  {
    std::lock_guard<std::mutex> lock(exchanges.mutex);
    forgotten.swap(exchanges.of_devices);
  }
  for (const auto& [devices, exchange] : forgotten) exchange->Abort("the runtime was reset");
}
