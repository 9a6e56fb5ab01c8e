// Question: what does a kernel know of the exchange that it is part of?
#pragma once

#include <cstdint>

#include "gpu/faults/fault_report.h"
#include "gpu/runtime/exchange_flags.h"

namespace moeprof::gpu {

// One rank's place in one call.
struct ExchangeCall {
  ExchangeFlags* flags[kMaxRanks];  // of every rank
  int32_t rank, ranks;
  uint64_t number;
  uint64_t timeout_ns;
  const uint32_t* abort;  // in host memory, or null; not 0: a rank is gone, give up
  GpuOp op;
  FaultSink faults;
};

}  // namespace moeprof::gpu
