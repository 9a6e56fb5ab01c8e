#include "gpu/runtime/device_memory.h"

namespace moeprof::gpu {
namespace {

gpuError_t Zero(void* memory, size_t bytes) {
  gpuStream_t stream;
  gpuError_t error = gpuStreamCreateNonBlocking(&stream);
  if (error != gpuSuccess) return error;
  error = gpuMemsetAsync(memory, 0, bytes, stream);
  if (error == gpuSuccess) error = gpuStreamSynchronize(stream);
  (void)gpuStreamDestroy(stream);
  return error;
}

}  // namespace

std::variant<void*, gpuError_t> AllocateZeroed(size_t bytes) {
  void* memory = nullptr;
  gpuError_t error = gpuMallocCoherent(&memory, bytes);
  if (error != gpuSuccess) return error;
  error = Zero(memory, bytes);
  if (error == gpuSuccess) return memory;
  (void)gpuFree(memory);
  return error;
}

}  // namespace moeprof::gpu
