// Question: how does a kernel say what was wrong with its inputs, and how do we hear of it?
//
// Lengths, ids and handles on the device are known to kernels alone, so a handler cannot refuse
// unsound ones. Every device has one record in pinned host memory, for all operations. The first
// thread that finds a fault claims it, writes what it found, and the kernel makes its outputs
// useless (NaN, -1) where it cannot go on. The record is read by the next handler on that device,
// of whichever operation, which fails with its text; with MOEPROF_STRICT=1 each handler waits for
// its own kernels and reads it at once.
//
//   handler:  SinkUnlessFaulty(), launch, AfterLaunch()     kernel:  ReportFault() (fault_sink.h)
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
  // Of lengths: index, found, sum of the lengths up to it, expected, element of the batch or -1
  // where all elements share them.
  kNegativeLength,
  kLengthsPastRows,  // expected: rows of the operand
  kOffsetsNotSums,   // index and found of the offset; expected: sum of the lengths before it
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
  int32_t padding;
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

// What a handler asks for before it launches: that sink, or the failure that earlier kernels of the
// current device have reported, which is thereby forgotten.
std::variant<FaultSink, Failure> SinkUnlessFaulty();

// How many faults of `device` have been taken by handlers, and the text of the last.
struct FaultsTaken {
  int64_t count = 0;
  std::string last;
};
FaultsTaken FaultsTakenFrom(int device);

// With MOEPROF_STRICT=1 in the environment now, waits for `stream` of the current device; the fault
// that its kernels reported.
Outcome AfterLaunch(gpuStream_t stream);

}  // namespace moeprof::gpu
