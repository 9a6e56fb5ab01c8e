#include "gpu/exchange_fault.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

namespace moeprof::gpu {
namespace {

struct Records {
  std::mutex mutex;
  std::map<int, ExchangeFault*> of_device;
};

Records& TheRecords() {
  // Never destroyed: the watcher and XLA's threads may outlive static objects.
  static Records* const records = new Records;
  return *records;
}

ExchangeFaultKind KindOf(const ExchangeFault& record) {
  return static_cast<ExchangeFaultKind>(
      __atomic_load_n(reinterpret_cast<const int32_t*>(&record.text.kind), __ATOMIC_ACQUIRE));
}

bool IsAboutPeer(ExchangeFaultKind kind) {
  return kind == ExchangeFaultKind::kLate || kind == ExchangeFaultKind::kAborted;
}

std::string Range(const ExchangeFaultText& text, char close) {
  return "outside [" + std::to_string(text.low) + ", " + std::to_string(text.high) + close;
}

std::string Describe(const ExchangeFaultText& text) {
  const std::string a = std::to_string(text.a), b = std::to_string(text.b),
                    found = std::to_string(text.found);
  switch (text.kind) {
    case ExchangeFaultKind::kLate: {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%.1f", static_cast<double>(text.high) * 1e-9);
      return "rank " + a + " waited " + seconds + " s on its GPU for rank " + b +
             ": expected it at call " + std::to_string(text.low) + " of the group, found it at " +
             found;
    }
    case ExchangeFaultKind::kAborted:
      return "rank " + a + " gave up waiting for rank " + b + " at call " +
             std::to_string(text.low) + " of the group: a rank is gone, or the runtime was reset";
    case ExchangeFaultKind::kExpert:
      return "topk_idx of token " + a + ", slot " + b + " is " + found + ", " + Range(text, ')') +
             " and not -1 (unused)";
    case ExchangeFaultKind::kPrefix:
      return "handle: rank_prefix_matrix ends the rows from rank " + a + " at " + found + ", " +
             Range(text, ']');
    case ExchangeFaultKind::kSource:
      return "handle: recv_src_idx of row " + a + " is " + found + ", " + Range(text, ')');
    case ExchangeFaultKind::kRow:
      return "handle: token " + a + " lies at row " + found + " of rank " + b + ", " +
             Range(text, ')');
    case ExchangeFaultKind::kNone:
      break;
  }
  return "";
}

// A kernel that gives up waiting ends the CUDA context, and JAX then knows no reason. Says it.
void Watch() {
  std::map<int, bool> has_told;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Records& records = TheRecords();
    std::lock_guard<std::mutex> lock(records.mutex);
    for (const auto& [device, record] : records.of_device) {
      if (!IsAboutPeer(KindOf(*record)) || has_told[device]) continue;
      has_told[device] = true;
      std::fprintf(stderr, "moeprof: dispatch or combine on GPU %d: %s\n", device,
                   Describe(record->text).c_str());
    }
  }
}

}  // namespace

ExchangeFault* ExchangeFaultOf(int device) {
  Records& records = TheRecords();
  std::lock_guard<std::mutex> lock(records.mutex);
  const auto found = records.of_device.find(device);
  if (found != records.of_device.end()) return found->second;
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, sizeof(ExchangeFault), cudaHostAllocMapped | cudaHostAllocPortable) !=
      cudaSuccess) {
    return nullptr;
  }
  auto* const record = new (memory) ExchangeFault{};
  if (records.of_device.empty()) std::thread(Watch).detach();
  records.of_device[device] = record;
  return record;
}

Outcome TakeExchangeFault(int device, const char* op) {
  Records& records = TheRecords();
  std::lock_guard<std::mutex> lock(records.mutex);
  const auto found = records.of_device.find(device);
  if (found == records.of_device.end()) return std::nullopt;
  ExchangeFault& record = *found->second;
  const ExchangeFaultKind kind = KindOf(record);
  if (kind == ExchangeFaultKind::kNone) return std::nullopt;
  const Failure failure{IsAboutPeer(kind) ? Fault::kDeadlineExceeded : Fault::kInvalidArgument,
                        std::string(op) + ": " + Describe(record.text)};
  // The context of a kernel that gave up is lost: that error stays.
  if (!IsAboutPeer(kind)) {
    record.text.kind = ExchangeFaultKind::kNone;
    __atomic_store_n(&record.claimed, 0, __ATOMIC_RELEASE);
  }
  return failure;
}

}  // namespace moeprof::gpu
