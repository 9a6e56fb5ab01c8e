#include "gpu/processes/memory_imports.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace moeprof::gpu {

MemoryImports::~MemoryImports() {
  for (Slot& slot : slots_) Unmap(slot);
}

std::variant<void*, Failure> MemoryImports::Find(const ProcessLink& link,
                                                 const SharedAddress& address, Deadline deadline) {
  if (address.slot < 0) return static_cast<void*>(nullptr);
  if (address.slot >= kAllocationSlots) {
    return Failure{Fault::kInternal, "EP rank " + link.NameOf(peer_) + " named memory slot " +
                                         std::to_string(address.slot)};
  }
  const Slot& slot = slots_[static_cast<size_t>(address.slot)];
  // Its notice was sent before the address was: it waits in the socket, after older ones.
  while (slot.generation < address.generation) {
    if (auto failure = TakeNotice(link, deadline)) return *failure;
  }
  if (slot.generation != address.generation || address.offset >= slot.bytes) {
    return Failure{Fault::kInternal, "EP rank " + link.NameOf(peer_) +
                                         " named memory that it has withdrawn or never had"};
  }
  return reinterpret_cast<void*>(slot.base + address.offset);
}

Outcome MemoryImports::TakeNotice(const ProcessLink& link, Deadline deadline) {
  auto received = link.Receive(peer_, deadline);
  if (auto* failure = std::get_if<Failure>(&received)) return *failure;
  const LinkMessage& message = std::get<LinkMessage>(received);
  AllocationNotice notice;
  notice.magic = 0;
  if (message.bytes.size() == sizeof(notice)) {
    std::memcpy(&notice, message.bytes.data(), sizeof(notice));
  }
  const bool has_descriptor = message.descriptor >= 0;
  if (notice.magic != AllocationNotice::kMagic || notice.slot < 0 ||
      notice.slot >= kAllocationSlots ||
      has_descriptor != (notice.kind == AllocationNotice::kDescriptor)) {
    if (has_descriptor) close(message.descriptor);
    return Failure{Fault::kInternal,
                   "EP rank " + link.NameOf(peer_) + " sent no notice of memory where one was due"};
  }
  Slot& slot = slots_[static_cast<size_t>(notice.slot)];
  if (slot.generation != 0) {
    // Kernels of earlier calls may still read it. They wait only for kernels that every peer has
    // launched already or launches without us, so this ends.
    cudaDeviceSynchronize();
    Unmap(slot);
  }
  const char* call = "";
  const CUresult result = Map(notice, message.descriptor, slot, call);
  if (has_descriptor) close(message.descriptor);
  if (result == CUDA_SUCCESS) return std::nullopt;
  return Failure{Fault::kInternal,
                 "GPU memory of EP rank " + link.NameOf(peer_) + " cannot be mapped here: " + call +
                     ": " + driver_.NameOf(result) + "; are both GPUs on one host and connected?"};
}

CUresult MemoryImports::Map(const AllocationNotice& notice, int descriptor, Slot& slot,
                            const char*& call) const {
  Slot made{notice.generation, notice.kind, 0, notice.bytes};
  CUresult result = CUDA_SUCCESS;
  if (notice.kind == AllocationNotice::kIpcHandle) {
    call = "cuIpcOpenMemHandle";
    result =
        driver_.ipc_open_mem_handle(&made.base, notice.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS) slot = made;
    return result;
  }
  CUmemGenericAllocationHandle handle = 0;
  call = "cuMemImportFromShareableHandle";
  result = driver_.mem_import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return result;
  call = "cuMemAddressReserve";
  result = driver_.mem_address_reserve(&made.base, made.bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) {
    call = "cuMemMap";
    result = driver_.mem_map(made.base, made.bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device_;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      call = "cuMemSetAccess";
      result = driver_.mem_set_access(made.base, made.bytes, &access, 1);
      if (result != CUDA_SUCCESS) driver_.mem_unmap(made.base, made.bytes);
    }
    if (result != CUDA_SUCCESS) driver_.mem_address_free(made.base, made.bytes);
  }
  driver_.mem_release(handle);  // the mapping holds the memory
  if (result == CUDA_SUCCESS) slot = made;
  return result;
}

void MemoryImports::Unmap(Slot& slot) const {
  if (slot.kind == AllocationNotice::kIpcHandle) {
    driver_.ipc_close_mem_handle(slot.base);
  } else if (slot.kind == AllocationNotice::kDescriptor) {
    driver_.mem_unmap(slot.base, slot.bytes);
    driver_.mem_address_free(slot.base, slot.bytes);
  }
  slot = Slot{};
}

}  // namespace moeprof::gpu
