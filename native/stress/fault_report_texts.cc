// Question: what do handlers hear of the faults that kernels write down?
//
// No GPU: the few calls of the runtime that fault_report.cc makes are stood in for here, and this
// program writes into the record as a kernel does (fault_sink.h).
//
//   fault_report_texts    each line of stdin is a fault: OP KIND V0 V1 V2 V3 V4, the numbers of
//                         fault_report.h. For each prints the fault's code and its text.
//
// Exits 1 where a fault is heard of twice or not at all, or where a kernel that was launched before
// one was heard of would write into the record afterwards.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <variant>

#include "gpu/faults/fault_report.h"
#include "gpu/runtime/device_memory.h"

// The runtime's stand-ins: one device, whose memory is the host's.
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "error"; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::calloc(1, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned) {
  *on_device = memory;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

namespace moeprof::gpu {

std::variant<void*, gpuError_t> AllocateZeroed(size_t bytes) { return std::calloc(1, bytes); }

}  // namespace moeprof::gpu

namespace {

using moeprof::Failure;
using moeprof::gpu::FaultKind;
using moeprof::gpu::FaultRecord;
using moeprof::gpu::FaultSink;
using moeprof::gpu::GpuOp;
using moeprof::gpu::SinkUnlessFaulty;

// ReportFault of fault_sink.h on the host: whether the words got in.
bool Report(const FaultSink& sink, const FaultRecord& fault) {
  if (*sink.claim >= sink.generation) return false;
  *sink.claim = sink.generation;
  *sink.record = fault;
  __atomic_store_n(&sink.record->complete, 1, __ATOMIC_RELEASE);
  return true;
}

// Whether a handler gets a sink; where it does not, `failure` is what it hears of.
bool Ask(FaultSink& sink, Failure& failure) {
  const auto asked = SinkUnlessFaulty();
  if (const auto* found = std::get_if<Failure>(&asked)) {
    failure = *found;
    return false;
  }
  sink = std::get<FaultSink>(asked);
  return true;
}

const char* Misstep(const FaultRecord& fault) {
  FaultSink sink{}, next{};
  Failure heard{};
  if (!Ask(sink, heard)) return "heard of a fault that nobody had reported";
  if (!Report(sink, fault)) return "the first fault was not written down";
  if (Report(sink, fault)) return "a second fault was written over the first";
  if (Ask(next, heard)) return "the fault was not heard of";
  std::printf("%d %s\n", static_cast<int>(heard.fault), heard.text.c_str());
  if (!Ask(next, heard)) return "the fault was heard of twice";
  if (Report(sink, fault)) return "a kernel launched before wrote into a record read since";
  if (!Ask(next, heard)) return "heard of a fault of before";
  return nullptr;
}

}  // namespace

int main() {
  int op = 0, kind = 0;
  long long v[5];
  int64_t count = 0;
  while (std::scanf("%d %d %lld %lld %lld %lld %lld", &op, &kind, v, v + 1, v + 2, v + 3, v + 4) ==
         7) {
    FaultRecord fault{};
    fault.kind = static_cast<FaultKind>(kind);
    fault.op = static_cast<GpuOp>(op);
    for (int i = 0; i < 5; ++i) fault.values[i] = v[i];
    if (const char* const misstep = Misstep(fault)) {
      std::printf("fault %lld: %s\n", static_cast<long long>(count), misstep);
      return 1;
    }
    ++count;
  }
  const auto taken = moeprof::gpu::FaultsTakenFrom(0);
  return taken.count == count ? 0 : 1;
}
