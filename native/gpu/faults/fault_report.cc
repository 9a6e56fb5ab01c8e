#include "gpu/faults/fault_report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "common/seconds_text.h"
#include "gpu/runtime/device_memory.h"

namespace moeprof::gpu {
namespace {

constexpr std::chrono::milliseconds kLook{200};

struct DeviceFaults {
  FaultRecord* host = nullptr;
  FaultSink sink{};
  FaultsTaken taken;
  bool was_printed = false;
};

struct AllFaults {
  std::mutex mutex;
  std::map<int, DeviceFaults> of_device;
  bool has_watcher = false;
};

AllFaults& All() {
  // Never destroyed: kernels may still run when the process ends.
  static AllFaults* const all = new AllFaults;
  return *all;
}

std::string Number(int64_t value) { return std::to_string(value); }

std::string Duration(int64_t nanoseconds) {
  using std::chrono::milliseconds;
  return SecondsText(
      std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(nanoseconds)));
}

// An entry of the lengths or offsets, and of which element of the batch they are.
std::string Entry(const char* array, const int64_t* v) {
  const std::string entry = std::string(array) + "[" + Number(v[0]) + "]";
  return (v[4] < 0 ? entry : entry + " of batch element " + Number(v[4])) + " is " + Number(v[1]);
}

// What the CPU's handlers say of the same faults (cpu/products/group_offsets.cc,
// cpu/exchange/handle.cc).
std::string TextOf(const FaultRecord& record) {
  const int64_t* const v = record.values;
  const std::string op = std::string(NameOf(record.op)) + ": ";
  switch (record.kind) {
    case FaultKind::kNegativeLength:
      return op + Entry("group_lens", v) + "; a length is at least 0";
    case FaultKind::kLengthsPastRows:
      // The sum of two lengths below 2^63 may be past what int64 holds.
      return op + Entry("group_lens", v) + ": groups 0 to " + Number(v[0]) + " sum to " +
             std::to_string(static_cast<uint64_t>(v[2])) + " rows, but there are " + Number(v[3]) +
             " rows";
    case FaultKind::kOffsetsNotSums:
      return op + Entry("group_offs", v) + ", but the lengths before it sum to " + Number(v[3]);
    case FaultKind::kExpertId:
      return op + "topk_idx of token " + Number(v[0]) + ", slot " + Number(v[1]) + " is " +
             Number(v[2]) + ", outside [0, " + Number(v[3]) + ") and not -1 (unused)";
    case FaultKind::kHandlePrefix:
      return op + "handle: rank_prefix_matrix ends the rows from rank " + Number(v[0]) + " at " +
             Number(v[1]) + ", outside [" + Number(v[2]) + ", " + Number(v[3]) + "]";
    case FaultKind::kHandleRow:
      return op + "handle: token " + Number(v[0]) + " lies at row " + Number(v[2]) + " of rank " +
             Number(v[1]) + ", outside [0, " + Number(v[3]) + ")";
    case FaultKind::kHandleToken:
      return op + "handle: recv_src_idx of row " + Number(v[0]) + " is " + Number(v[1]) +
             ", outside [0, " + Number(v[2]) + ")";
    case FaultKind::kPeerLate:
      return op + "rank " + Number(v[0]) + " waited " + Duration(v[4]) + " on its GPU for rank " +
             Number(v[1]) + ": expected it at call " + Number(v[3]) +
             " of the group, found it at " + Number(v[2]) +
             ". The GPU of that rank is busy or has stopped; MOEPROF_EP_TIMEOUT_S sets the wait";
    case FaultKind::kGivenUp:
      return op + "rank " + Number(v[0]) + " gave up waiting for rank " + Number(v[1]) +
             " at call " + Number(v[3]) + " of the group: a rank is gone";
    case FaultKind::kNone:
      break;
  }
  return op + "unknown fault " + Number(static_cast<int64_t>(record.kind));
}

Fault CodeOf(FaultKind kind) {
  if (kind == FaultKind::kPeerLate) return Fault::kDeadlineExceeded;
  return kind == FaultKind::kGivenUp ? Fault::kAborted : Fault::kInvalidArgument;
}

bool IsComplete(const FaultRecord* record) {
  return record != nullptr && __atomic_load_n(&record->complete, __ATOMIC_ACQUIRE) != 0;
}

// A kernel that gave up has ended its context: no handler will run there again, so the reason is
// printed.
void PrintLast(AllFaults& all) {
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [device, faults] : all.of_device) {
    if (faults.was_printed || !IsComplete(faults.host)) continue;
    if (CodeOf(faults.host->kind) == Fault::kInvalidArgument) continue;
    faults.was_printed = true;
    std::fprintf(stderr, "moeprof: GPU %d: %s\n", device, TextOf(*faults.host).c_str());
    std::fflush(stderr);
  }
}

void StartWatcher(AllFaults& all) {
  if (all.has_watcher) return;
  all.has_watcher = true;
  std::thread([&all] {
    for (;;) {
      std::this_thread::sleep_for(kLook);
      PrintLast(all);
    }
  }).detach();
}

gpuError_t Allocate(DeviceFaults& faults) {
  void* host = nullptr;
  void* seen_by_device = nullptr;
  void* claim = nullptr;
  gpuError_t error = gpuHostAllocMapped(&host, sizeof(FaultRecord));
  if (error != gpuSuccess) return error;
  std::memset(host, 0, sizeof(FaultRecord));
  error = gpuHostGetDevicePointer(&seen_by_device, host);
  if (error == gpuSuccess) {
    auto memory = AllocateZeroed(sizeof(uint32_t));
    if (auto* failed = std::get_if<gpuError_t>(&memory)) {
      error = *failed;
    } else {
      claim = std::get<void*>(memory);
    }
  }
  if (error != gpuSuccess) {
    (void)gpuFreeHost(host);
    return error;
  }
  faults.host = static_cast<FaultRecord*>(host);
  faults.sink = {static_cast<FaultRecord*>(seen_by_device), static_cast<uint32_t*>(claim), 1};
  return gpuSuccess;
}

// The failure that kernels of `device` have reported, which is thereby forgotten.
Outcome TakeFault(int device) {
  AllFaults& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.of_device.find(device);
  if (found == all.of_device.end() || !IsComplete(found->second.host)) return std::nullopt;
  DeviceFaults& faults = found->second;
  const Failure failure{CodeOf(faults.host->kind), TextOf(*faults.host)};
  ++faults.taken.count;
  faults.taken.last = failure.text;
  faults.was_printed = false;
  __atomic_store_n(&faults.host->complete, 0, __ATOMIC_RELEASE);
  ++faults.sink.generation;  // after the record is free again
  return failure;
}

bool IsStrict() {
  const char* const value = std::getenv("MOEPROF_STRICT");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace

const char* NameOf(GpuOp op) {
  switch (op) {
    case GpuOp::kGroupedGemm:
      return "moeprof_grouped_gemm";
    case GpuOp::kGroupedGemmVariableK:
      return "moeprof_grouped_gemm_variable_k";
    case GpuOp::kDispatch:
      return "moeprof_moe_dispatch";
    case GpuOp::kCachedDispatch:
      return "moeprof_moe_cached_dispatch";
    case GpuOp::kCombine:
      return "moeprof_moe_combine";
  }
  return "moeprof";
}

std::variant<FaultSink, Failure> SinkOfCurrentDevice() {
  int device = 0;
  gpuError_t error = gpuGetDevice(&device);
  if (error == gpuSuccess) {
    AllFaults& all = All();
    std::lock_guard<std::mutex> lock(all.mutex);
    DeviceFaults& faults = all.of_device[device];
    if (faults.host == nullptr) error = Allocate(faults);
    if (error == gpuSuccess) {
      StartWatcher(all);
      return faults.sink;
    }
  }
  return Failure{Fault::kInternal,
                 std::string("no memory for reports of faults: ") + GpuErrorName(error)};
}

std::variant<FaultSink, Failure> SinkUnlessFaulty() {
  int device = 0;
  // Where this fails, so does the call below, which says so.
  if (gpuGetDevice(&device) == gpuSuccess) {
    if (auto fault = TakeFault(device)) return *fault;
  }
  return SinkOfCurrentDevice();
}

FaultsTaken FaultsTakenFrom(int device) {
  AllFaults& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.of_device.find(device);
  return found == all.of_device.end() ? FaultsTaken{} : found->second.taken;
}

Outcome AfterLaunch(gpuStream_t stream) {
  if (!IsStrict()) return std::nullopt;
  int device = 0;
  (void)gpuGetDevice(&device);
  const gpuError_t error = gpuStreamSynchronize(stream);
  if (auto fault = TakeFault(device)) return fault;
  if (error == gpuSuccess) return std::nullopt;
  return Failure{Fault::kInternal, std::string("kernels failed: ") + GpuErrorName(error)};
}

}  // namespace moeprof::gpu
