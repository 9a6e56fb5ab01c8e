// Question: where does GPU memory of another process lie in this one?
//
// The counterpart of memory_exports.h: reads the notices of one peer as they are needed and maps
// each allocation once, for this process's GPU.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "gpu/processes/memory_exports.h"
#include "gpu/processes/process_link.h"
#include "gpu/runtime/driver_calls.h"

namespace moeprof::gpu {

class MemoryImports {
 public:
  // Of rank `peer`, for GPU `device`.
  MemoryImports(const DriverCalls& driver, int peer, int device)
      : driver_(driver), peer_(peer), device_(device), slots_(kAllocationSlots) {}
  ~MemoryImports();
  MemoryImports(const MemoryImports&) = delete;
  MemoryImports& operator=(const MemoryImports&) = delete;

  // The address in this process; null for no address. The device must be current.
  std::variant<void*, Failure> Find(const ProcessLink& link, const SharedAddress& address,
                                    Deadline deadline);

 private:
  struct Slot {
    uint64_t generation = 0;
    uint32_t kind = 0;
    CUdeviceptr base = 0;
    size_t bytes = 0;
  };

  Outcome TakeNotice(const ProcessLink& link, Deadline deadline);
  CUresult Map(const AllocationNotice& notice, int descriptor, Slot& slot, const char*& call) const;
  void Unmap(Slot& slot) const;

  const DriverCalls& driver_;
  const int peer_;
  const int device_;
  std::vector<Slot> slots_;
};

}  // namespace moeprof::gpu
