// Question: how does a kernel say what was wrong with its inputs, and how do we hear of it?
//
// Sizes on the device are known to kernels alone, so a handler cannot refuse unsound ones. Every
// device has one record in pinned host memory for all exchanges; grouped products have theirs in
// grouped_gemm/fault.h. The first thread that finds a fault claims it,
// writes what it found, and the kernel makes its outputs useless (NaN, -1) where it cannot go on.
// The record is read by the next handler on that device, which fails with its text; with
// MOEPROF_STRICT=1 each handler waits for its own kernels and reads it at once.
//
//   kernel:  ReportFault(sink, ...) (fault_sink.h)     handler:  TakeFault(device)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "common/failure.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

enum class GpuOp : int32_t {
  kGroupedGemm,
  kGroupedGemmVariableK,
  kDispatch,
  kCachedDispatch,
  kCombine,
};

// The name in HLO, without the ending for the mode.
const char* NameOf(GpuOp op);

// What the values of a record mean.
enum class FaultKind : int32_t {
  kNone = 0,
  kNegativeLength,   // index, found
  kLengthsPastRows,  // index, found, sum with those before, rows
  kOffsetsNotSums,   // index, found, expected
  kExpertId,         // token, slot, found, experts
  kHandlePrefix,     // source rank, found end of its rows, end of the rank before, rows
  kHandleRow,        // token, destination rank, found row, rows
  kHandleToken,      // row, found token, tokens
  kPeerLate,         // own rank, rank waited for, call it was at, own call, nanoseconds waited
  kGivenUp,          // own rank, rank waited for, call it was at, own call
};

// In pinned host memory. `complete` is written last.
struct FaultRecord {
  int32_t complete;
  FaultKind kind;
  GpuOp op;
  int32_t reserved;
  int64_t values[5];
};

// What a kernel needs to report; passed by value.
struct FaultSink {
  FaultRecord* record;
  uint32_t* claim;      // device memory: the last generation that was claimed
  uint32_t generation;  // goes up each time that a record has been read
};

// The sink of the current device, made at its first use. Launch with the one asked for last.
std::variant<FaultSink, Failure> SinkOfCurrentDevice();

// The failure that kernels of `device` have reported since the last call, which forgets it.
Outcome TakeFault(int device);

// How many faults of `device` have been taken, and the text of the last.
struct FaultsTaken {
  int64_t count = 0;
  std::string last;
};
FaultsTaken FaultsTakenFrom(int device);

// Counts a fault of the current device that was taken from another record.
void CountTaken(const std::string& text);

// Whether MOEPROF_STRICT=1 is in the environment now.
bool IsStrict();

// In strict mode waits for `stream` of the current device; the fault that its kernels reported.
Outcome AfterLaunch(gpuStream_t stream);

}  // namespace moeprof::gpu

extern "C" {

// Copies the text of the first fault reported and not yet taken, of any device, and takes it.
// Returns its length; 0: none.
__attribute__((visibility("default"))) int MoeprofGpuFault(char* text, int size);
}
