#include "gpu/processes/memory_exports.h"

#include <unistd.h>

#include <string>

namespace moeprof::gpu {
namespace {

std::string Address(CUdeviceptr pointer) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[pointer % 16]);
    pointer /= 16;
  } while (pointer > 0);
  return "0x" + text;
}

}  // namespace

MemoryExports::~MemoryExports() {
  for (Slot& slot : slots_) Forget(slot);
}

void MemoryExports::Forget(Slot& slot) {
  if (slot.handle != 0) driver_.mem_release(slot.handle);
  slot = Slot{};
}

// Whether the allocation of the slot is still the one behind the pointer.
bool MemoryExports::IsStill(const Slot& slot, CUdeviceptr pointer) const {
  if (slot.handle != 0) {
    CUmemGenericAllocationHandle now = 0;
    if (driver_.mem_retain_allocation_handle(&now, reinterpret_cast<void*>(pointer)) !=
        CUDA_SUCCESS) {
      return false;
    }
    driver_.mem_release(now);
    return now == slot.handle;
  }
  uint64_t number = 0;
  return driver_.pointer_get_attribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer) ==
             CUDA_SUCCESS &&
         number == slot.number;
}

std::variant<SharedAddress, Failure> MemoryExports::Share(const ProcessLink& link,
                                                          const void* pointer, size_t bytes,
                                                          Deadline deadline) {
  if (pointer == nullptr || bytes == 0) return SharedAddress{};
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  int32_t found = -1;
  for (int32_t i = 0; i < kAllocationSlots && found < 0; ++i) {
    Slot& slot = slots_[static_cast<size_t>(i)];
    if (slot.generation == 0 || address < slot.base || address - slot.base >= slot.bytes) continue;
    if (slot.used_in_round == round_ || IsStill(slot, address)) {
      found = i;
    } else {
      Forget(slot);
    }
  }
  if (found < 0) {
    auto exported = Export(link, address, deadline);
    if (auto* failure = std::get_if<Failure>(&exported)) return *failure;
    found = std::get<int32_t>(exported);
  }
  Slot& slot = slots_[static_cast<size_t>(found)];
  slot.used_in_round = round_;
  const uint64_t offset = address - slot.base;
  if (bytes > slot.bytes - offset) {
    return Failure{Fault::kInternal, "a buffer of " + std::to_string(bytes) + " bytes at " +
                                         Address(address) + " goes beyond its allocation of " +
                                         std::to_string(slot.bytes) + " bytes at " +
                                         Address(slot.base) +
                                         ": processes can share only buffers that lie in one"};
  }
  return SharedAddress{found, 0, slot.generation, offset};
}

std::variant<int32_t, Failure> MemoryExports::Export(const ProcessLink& link, CUdeviceptr pointer,
                                                     Deadline deadline) {
  Slot made;
  CUresult result = driver_.mem_get_address_range(&made.base, &made.bytes, pointer);
  if (result != CUDA_SUCCESS) {
    return Failure{Fault::kInternal,
                   "cuMemGetAddressRange of " + Address(pointer) + ": " + driver_.NameOf(result)};
  }
  AllocationNotice notice;
  int descriptor = -1;
  if (driver_.mem_retain_allocation_handle(&made.handle, reinterpret_cast<void*>(pointer)) ==
      CUDA_SUCCESS) {
    notice.kind = AllocationNotice::kDescriptor;
    result =
        driver_.mem_export(&descriptor, made.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  } else {
    made.handle = 0;
    notice.kind = AllocationNotice::kIpcHandle;
    result = driver_.ipc_get_mem_handle(&notice.handle, made.base);
    if (result == CUDA_SUCCESS) {
      result = driver_.pointer_get_attribute(&made.number, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer);
    }
  }
  if (result != CUDA_SUCCESS) {
    Forget(made);
    return Failure{Fault::kInvalidArgument,
                   "CUDA cannot share the memory of an array with other processes (" +
                       driver_.NameOf(result) +
                       "): expected XLA's default allocator, and an array that is no constant of "
                       "the program; unset XLA_PYTHON_CLIENT_ALLOCATOR, which must not be "
                       "cuda_async"};
  }
  made.generation = ++generations_;
  const int32_t place = FreeSlot();
  notice.slot = place;
  notice.generation = made.generation;
  notice.bytes = made.bytes;
  const std::string message(reinterpret_cast<const char*>(&notice), sizeof(notice));
  Outcome outcome;
  for (int peer = 0; peer < link.ranks() && !outcome; ++peer) {
    if (peer != link.rank()) outcome = link.Send(peer, message, descriptor, deadline);
  }
  if (descriptor >= 0) close(descriptor);  // those that travel are the kernel's copies
  slots_[static_cast<size_t>(place)] = made;
  if (outcome) return *outcome;
  return place;
}

// A slot without an allocation: an empty one, else the one that was used longest ago.
int32_t MemoryExports::FreeSlot() {
  int32_t oldest = 0;
  for (int32_t i = 0; i < kAllocationSlots; ++i) {
    if (slots_[static_cast<size_t>(i)].used_in_round <
        slots_[static_cast<size_t>(oldest)].used_in_round) {
      oldest = i;
    }
  }
  Forget(slots_[static_cast<size_t>(oldest)]);
  return oldest;
}

}  // namespace moeprof::gpu
