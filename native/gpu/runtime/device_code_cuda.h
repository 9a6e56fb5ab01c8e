// Question: what are the instructions of device_code.h on NVIDIA GPUs?
//
// Source of semantics: PTX ISA 8.5, memory consistency model, ld, st and griddepcontrol.
#pragma once

#include <cstdint>

#define MOEPROF_GRID_CONSTANT __grid_constant__

namespace moeprof::gpu {

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFF;

template <typename T>
__device__ __forceinline__ T Shuffle(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
template <typename T>
__device__ __forceinline__ T ShuffleUp(T value, int step) {
  return __shfl_up_sync(kAllLanes, value, step);
}
__device__ __forceinline__ uint32_t Ballot(bool is) { return __ballot_sync(kAllLanes, is); }
__device__ __forceinline__ bool Any(bool is) { return __any_sync(kAllLanes, is) != 0; }

__device__ __forceinline__ uint4 LoadWord(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ void StoreWord(uint4* to, const uint4& v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ uint64_t LoadAcquireSystem(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void StoreReleaseSystem(uint64_t* address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// Acquire and release at the scope of the system. __threadfence_system() would also put all fences
// into one order, which nothing here needs, and takes longer.
__device__ __forceinline__ void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ uint32_t CountUpTo(uint32_t* count, uint32_t last) {
  return atomicInc(count, last);
}

// Fences are cumulative: the barrier is enough.
__device__ __forceinline__ void ReleaseBeforeBarrier() {}

__device__ __forceinline__ void LetNextKernelStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ uint64_t GlobalNanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ void StopKernel() { __trap(); }

}  // namespace moeprof::gpu
