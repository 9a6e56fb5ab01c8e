#include "gpu/grouped_gemm/fault_text.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "gpu/faults/fault_report.h"

namespace moeprof::gpu {
namespace {

std::string Name(const char* array, const LengthsFault& fault) {
  const std::string name = std::string(array) + "[" + std::to_string(fault.index) + "]";
  if (fault.element < 0) return name;
  return name + " of batch element " + std::to_string(fault.element);
}

std::string Text(const LengthsFault& fault) {
  const std::string found = std::to_string(fault.found);
  switch (fault.kind) {
    case LengthsFaultKind::kNegative:
      return Name("group_lens", fault) + " is " + found + "; a length is at least 0";
    case LengthsFaultKind::kPastRows:
      return Name("group_lens", fault) + " is " + found + ": groups 0 to " +
             std::to_string(fault.index) + " sum to " +
             std::to_string(static_cast<uint64_t>(fault.sum)) + " rows, but there are " +
             std::to_string(fault.expected) + " rows";
    case LengthsFaultKind::kNotTheSum:
      return Name("group_offs", fault) + " is " + found + ", but the lengths before it sum to " +
             std::to_string(fault.expected);
    case LengthsFaultKind::kNone:
      break;
  }
  return "the lengths are not sound";
}

LengthsFault* MakeRecord() {
  void* record = nullptr;
  if (cudaHostAlloc(&record, sizeof(LengthsFault), cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();  // The next call of somebody else must not find this error.
    return nullptr;
  }
  std::memset(record, 0, sizeof(LengthsFault));
  return static_cast<LengthsFault*>(record);
}

}  // namespace

LengthsFault* LengthsFaultOf(const char* op) {
  static std::mutex mutex;
  // Never freed: kernels may report until the process ends.
  static auto* const records = new std::map<std::pair<std::string, int>, LengthsFault*>;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  LengthsFault*& record = (*records)[{op, device}];
  if (record == nullptr) record = MakeRecord();
  return record;
}

std::optional<std::string> TakeLengthsFault(LengthsFault* record) {
  if (record == nullptr) return std::nullopt;
  // The kernel writes the kind last.
  const auto* kind = reinterpret_cast<const volatile int32_t*>(&record->kind);
  if (*kind == 0) return std::nullopt;
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::string text = Text(*record);
  record->kind = LengthsFaultKind::kNone;
  std::atomic_thread_fence(std::memory_order_release);
  *const_cast<volatile int32_t*>(&record->claimed) = 0;
  CountTaken("grouped_gemm: " + text);  // for ranks that wait for this one in an exchange
  return text;
}

}  // namespace moeprof::gpu
