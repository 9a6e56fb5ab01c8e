// Question: how do the other processes of an EP group learn where this process's GPU memory is?
//
// Memory is shared by whole allocations, which are large and few: XLA takes one for its whole pool.
// Each is sent once to every peer over the link; afterwards a pointer is an offset into it. Two
// kinds exist:
//   - memory mapped by cuMemMap (XLA's, since it asks for descriptors at cuMemCreate): a file
//     descriptor of the allocation travels over the socket;
//   - memory of cuMemAlloc (ours, and XLA's in older releases): an IPC handle of 64 bytes.
//
// An address can come back with another allocation behind it once XLA freed the first. So an
// allocation is known by more than its address: by its handle, which we keep, so that no other can
// get the same; and for cuMemAlloc by the driver's number of the allocation.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "gpu/processes/process_link.h"
#include "gpu/runtime/driver_calls.h"

namespace moeprof::gpu {

// A place in the memory of another process. The bytes travel as they are, between equal builds.
struct SharedAddress {
  int32_t slot = -1;  // -1: no address
  int32_t reserved = 0;
  uint64_t generation = 0;  // which allocation had the slot
  uint64_t offset = 0;      // bytes
};

// Tells a peer of an allocation; its descriptor, if it has one, comes with the message.
struct AllocationNotice {
  static constexpr uint32_t kMagic = 0x6d6f6532;
  enum Kind : uint32_t { kDescriptor = 1, kIpcHandle = 2 };

  uint32_t magic = kMagic;
  uint32_t kind = 0;
  int32_t slot = -1;
  int32_t reserved = 0;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  CUipcMemHandle handle{};
};

// Slots for allocations. XLA's pool takes one, or a few where it grows; only an allocator without a
// pool needs more, and then the one that was used longest ago makes room.
constexpr int32_t kAllocationSlots = 32;

class MemoryExports {
 public:
  explicit MemoryExports(const DriverCalls& driver) : driver_(driver), slots_(kAllocationSlots) {}
  ~MemoryExports();
  MemoryExports(const MemoryExports&) = delete;
  MemoryExports& operator=(const MemoryExports&) = delete;

  // Where peers find `bytes` bytes at `pointer`, null for nothing. Sends them the allocation where
  // they do not have it. Checks an allocation once between two calls of BeginRound.
  std::variant<SharedAddress, Failure> Share(const ProcessLink& link, const void* pointer,
                                             size_t bytes, Deadline deadline);

  void BeginRound() { ++round_; }

 private:
  struct Slot {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;  // kept, for cuMemMap
    uint64_t number = 0;                      // of the driver, for cuMemAlloc
    uint64_t generation = 0;
    uint64_t used_in_round = 0;
  };

  bool IsStill(const Slot& slot, CUdeviceptr pointer) const;
  std::variant<int32_t, Failure> Export(const ProcessLink& link, CUdeviceptr pointer,
                                        Deadline deadline);
  int32_t FreeSlot();
  void Forget(Slot& slot);

  const DriverCalls& driver_;
  std::vector<Slot> slots_;
  uint64_t round_ = 1;
  uint64_t generations_ = 0;
};

}  // namespace moeprof::gpu
