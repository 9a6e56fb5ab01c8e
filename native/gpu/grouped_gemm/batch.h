// Question: how does a handler put the products of a batch on its stream, and what does it return?
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>

#include "common/grouped_gemm_shapes.h"
#include "gpu/faults/ffi_error.h"
#include "gpu/grouped_gemm/launch.h"
#include "gpu/runtime/gpu_runtime.h"
#include "gpu/runtime/scratch.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

struct BatchCall {
  GpuOp op;
  gpuStream_t stream;
  xla::ffi::ScratchAllocator& allocator;
  LengthsShape lengths;
  int64_t batch;
  int64_t max_threads;  // blocks at most; 0: no limit
};

// What one product of a batch is launched with, besides its operands.
struct ProductLaunch {
  void* scratch;
  LengthsReport report;
  GemmChoice choice;
};

// Calls `launch(element, ProductLaunch)`, which returns a complaint or "", for each element of the
// batch. Returns what the device reported before this call, or with MOEPROF_STRICT=1 what it
// reports now.
template <typename Launch>
xla::ffi::Error RunBatch(const BatchCall& call, const Launch& launch) {
  const auto sink = SinkUnlessFaulty();
  if (const auto* fault = std::get_if<Failure>(&sink)) return ToError(call.op, *fault);
  void* const scratch =
      AlignedScratch(call.allocator, GroupedGemmScratchBytes(call.lengths.groups));
  if (scratch == nullptr) return ToError(call.op, {Fault::kResourceExhausted, "out of memory"});
  GemmChoice choice;
  choice.max_blocks = static_cast<int32_t>(
      std::clamp<int64_t>(call.max_threads, 0, std::numeric_limits<int32_t>::max()));
  for (int64_t i = 0; i < call.batch; ++i) {
    // What a fault in the lengths is reported as: of no element where all share them.
    const int64_t name = call.lengths.lens_batch == 1 ? -1 : i;
    // One stream: the plan of an element is made after the product before has used its own.
    const std::string trouble =
        launch(i, {scratch, {std::get<FaultSink>(sink), call.op, name}, choice});
    if (!trouble.empty()) return ToError(call.op, {Fault::kInternal, trouble});
  }
  const Outcome reported = AfterLaunch(call.stream);
  return reported ? ToError(call.op, *reported) : xla::ffi::Error::Success();
}

}  // namespace moeprof::gpu
