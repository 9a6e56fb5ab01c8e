// Question: where does a plan report lengths that are not sound, and whose are they?
#pragma once

#include <cstdint>

#include "gpu/faults/fault_report.h"

namespace moeprof::gpu {

struct LengthsReport {
  FaultSink faults;
  GpuOp op;
  int64_t element;  // of the batch; -1 where all elements share the lengths
};

}  // namespace moeprof::gpu
