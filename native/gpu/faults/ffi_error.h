// Question: what does XLA get to see of a failure on the GPU?
#pragma once

#include "common/failure.h"
#include "gpu/faults/fault_report.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof::gpu {

// The error that a handler of `op` returns. Its text names an operation once: what a kernel
// reported names the one that the kernel belonged to, any other failure is of `op`.
xla::ffi::Error ToError(GpuOp op, const Failure& failure);

}  // namespace moeprof::gpu
