// Question: which calls of a GPU's runtime does portable code use, and what do they look like?
//
// The names are CUDA's with gpu in place of cuda. With MOEPROF_HIP they are HIP's. Sources that use
// these and device_code.h alone compile for both; those that need Hopper or the CUDA driver stay
// out of the HIP library (hip/CMakeLists.txt). Nothing of that library has run on an AMD GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(MOEPROF_HIP)

#include <hip/hip_runtime.h>
#define MOEPROF_GPU_NAME(name) hip##name

#else

#include <cuda_runtime_api.h>
#define MOEPROF_GPU_NAME(name) cuda##name

#endif

// Defined where a compiler of kernels reads, not where the C++ compiler does.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define MOEPROF_DEVICE_CODE 1
#endif

namespace moeprof::gpu {

using gpuError_t = MOEPROF_GPU_NAME(Error_t);
using gpuStream_t = MOEPROF_GPU_NAME(Stream_t);
constexpr gpuError_t gpuSuccess = MOEPROF_GPU_NAME(Success);
constexpr gpuError_t gpuErrorInvalidValue = MOEPROF_GPU_NAME(ErrorInvalidValue);
constexpr gpuError_t gpuErrorPeerAccessAlreadyEnabled =
    MOEPROF_GPU_NAME(ErrorPeerAccessAlreadyEnabled);

// Null, or "cudaErrorInvalidValue".
inline const char* GpuErrorName(gpuError_t error) {
  return error == gpuSuccess ? nullptr : MOEPROF_GPU_NAME(GetErrorName)(error);
}
inline const char* gpuGetErrorString(gpuError_t error) {
  return MOEPROF_GPU_NAME(GetErrorString)(error);
}
inline gpuError_t gpuGetLastError() { return MOEPROF_GPU_NAME(GetLastError)(); }

inline gpuError_t gpuGetDevice(int* device) { return MOEPROF_GPU_NAME(GetDevice)(device); }
inline gpuError_t gpuSetDevice(int device) { return MOEPROF_GPU_NAME(SetDevice)(device); }
inline gpuError_t gpuDeviceSynchronize() { return MOEPROF_GPU_NAME(DeviceSynchronize)(); }
inline gpuError_t gpuDeviceCanAccessPeer(int* can, int device, int peer) {
  return MOEPROF_GPU_NAME(DeviceCanAccessPeer)(can, device, peer);
}
inline gpuError_t gpuDeviceEnablePeerAccess(int peer) {
  return MOEPROF_GPU_NAME(DeviceEnablePeerAccess)(peer, 0);
}
// Multiprocessors of NVIDIA's, compute units of AMD's.
inline gpuError_t gpuMultiprocessorCount(int* count, int device) {
#if defined(MOEPROF_HIP)
  return hipDeviceGetAttribute(count, hipDeviceAttributeMultiprocessorCount, device);
#else
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
#endif
}

// A stream that does not wait for the default one.
inline gpuError_t gpuStreamCreateNonBlocking(gpuStream_t* stream) {
  return MOEPROF_GPU_NAME(StreamCreateWithFlags)(stream, MOEPROF_GPU_NAME(StreamNonBlocking));
}
inline gpuError_t gpuStreamDestroy(gpuStream_t stream) {
  return MOEPROF_GPU_NAME(StreamDestroy)(stream);
}
inline gpuError_t gpuStreamSynchronize(gpuStream_t stream) {
  return MOEPROF_GPU_NAME(StreamSynchronize)(stream);
}
inline gpuError_t gpuMemsetAsync(void* memory, int value, size_t bytes, gpuStream_t stream) {
  return MOEPROF_GPU_NAME(MemsetAsync)(memory, value, bytes, stream);
}

// Memory of the current device that other GPUs and the host may read and write while kernels run.
// AMD's ordinary memory is up to date for others only at the ends of kernels (HIP's "coherence
// control": coarse-grained), so that flags need the fine-grained kind.
inline gpuError_t gpuMallocCoherent(void** memory, size_t bytes) {
#if defined(MOEPROF_HIP)
  return hipExtMallocWithFlags(memory, bytes, hipDeviceMallocFinegrained);
#else
  return cudaMalloc(memory, bytes);
#endif
}
inline gpuError_t gpuFree(void* memory) { return MOEPROF_GPU_NAME(Free)(memory); }

// Pinned host memory that every GPU maps and that is coherent while kernels run.
inline gpuError_t gpuHostAllocMapped(void** memory, size_t bytes) {
#if defined(MOEPROF_HIP)
  return hipHostMalloc(memory, bytes,
                       hipHostMallocMapped | hipHostMallocPortable | hipHostMallocCoherent);
#else
  return cudaHostAlloc(memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
#endif
}
inline gpuError_t gpuHostGetDevicePointer(void** on_device, void* memory) {
  return MOEPROF_GPU_NAME(HostGetDevicePointer)(on_device, memory, 0);
}
inline gpuError_t gpuFreeHost(void* memory) {
#if defined(MOEPROF_HIP)
  return hipHostFree(memory);
#else
  return cudaFreeHost(memory);
#endif
}

// Loads a kernel on the current device; else its first launch does.
template <typename Kernel>
gpuError_t gpuLoadKernel(Kernel* kernel) {
  MOEPROF_GPU_NAME(FuncAttributes) attributes;
  return MOEPROF_GPU_NAME(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel));
}

}  // namespace moeprof::gpu
