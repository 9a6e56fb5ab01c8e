// Question: how does a kernel write down the fault that it found?
//
// For device code alone.
#pragma once

#include "gpu/faults/fault_report.h"

namespace moeprof::gpu {

// The first thread to call this after the record was last read gets its words in. The sink comes by
// value: where a part's address leaves the kernel, Clang copies the kernel's whole argument to each
// thread's scratch memory.
__device__ inline void ReportFault(FaultSink sink, GpuOp op, FaultKind kind, int64_t v0, int64_t v1,
                                   int64_t v2 = 0, int64_t v3 = 0, int64_t v4 = 0) {
  if (atomicMax(sink.claim, sink.generation) >= sink.generation) return;
  volatile FaultRecord* const record = sink.record;
  record->kind = kind;
  record->op = op;
  record->values[0] = v0;
  record->values[1] = v1;
  record->values[2] = v2;
  record->values[3] = v3;
  record->values[4] = v4;
  __threadfence_system();
  record->complete = 1;
  __threadfence_system();
}

}  // namespace moeprof::gpu
