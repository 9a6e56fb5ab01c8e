#include "gpu/runtime/device_memory.h"

namespace moeprof::gpu {
namespace {

gpuError_t Zero(void* memory, size_t bytes) {
  gpuStream_t stream;
  gpuError_t error =
      MOEPROF_GPU_NAME(StreamCreateWithFlags)(&stream, MOEPROF_GPU_NAME(StreamNonBlocking));
  if (error != gpuSuccess) return error;
  error = MOEPROF_GPU_NAME(MemsetAsync)(memory, 0, bytes, stream);
  if (error == gpuSuccess) error = MOEPROF_GPU_NAME(StreamSynchronize)(stream);
  (void)MOEPROF_GPU_NAME(StreamDestroy)(stream);
  return error;
}

}  // namespace

std::variant<void*, gpuError_t> AllocateZeroed(size_t bytes) {
  void* memory = nullptr;
  gpuError_t error = MOEPROF_GPU_NAME(Malloc)(&memory, bytes);
  if (error != gpuSuccess) return error;
  error = Zero(memory, bytes);
  if (error == gpuSuccess) return memory;
  (void)MOEPROF_GPU_NAME(Free)(memory);
  return error;
}

}  // namespace moeprof::gpu
