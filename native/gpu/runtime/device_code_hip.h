// Question: what are the instructions of device_code.h on AMD GPUs?
//
// Source of semantics: LLVM's "User Guide for AMDGPU Backend", memory model of gfx90a and gfx942.
#pragma once

#include <cstdint>

// Nothing to say: Clang reads arguments where they lie, unless their address leaves the kernel.
#define MOEPROF_GRID_CONSTANT

namespace moeprof::gpu {

constexpr int kLanes = 32;

template <typename T>
__device__ __forceinline__ T Shuffle(T value, int lane) {
  return __shfl(value, lane, kLanes);
}
template <typename T>
__device__ __forceinline__ T ShuffleUp(T value, int step) {
  return __shfl_up(value, static_cast<unsigned>(step), kLanes);
}

// A wavefront's ballot has a bit of each of its lanes; the group's are its low or its high half.
__device__ __forceinline__ uint32_t Ballot(bool is) {
  return static_cast<uint32_t>(__ballot(is) >> (__lane_id() / kLanes * kLanes));
}
__device__ __forceinline__ bool Any(bool is) { return Ballot(is) != 0; }

// Atomic loads have 8 bytes at most. Relaxed ones at the scope of the system pass the caches by,
// which may hold what a peer has overwritten, and need not wait for each other as volatile ones do.
__device__ __forceinline__ uint4 LoadWord(const uint4* from) {
  const auto* const halves = reinterpret_cast<const uint64_t*>(from);
  const uint64_t low = __hip_atomic_load(halves, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  const uint64_t high = __hip_atomic_load(halves + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  return make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                    static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32));
}

// Written back to memory by the release that follows.
__device__ __forceinline__ void StoreWord(uint4* to, const uint4& v) { *to = v; }

__device__ __forceinline__ uint64_t LoadAcquireSystem(const uint64_t* address) {
  return __hip_atomic_load(address, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}

__device__ __forceinline__ void StoreReleaseSystem(uint64_t* address, uint64_t value) {
  __hip_atomic_store(address, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

__device__ __forceinline__ void FenceSystem() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }

// atomicInc of HIP before 6 names an instruction that newer compilers know by another name.
__device__ __forceinline__ uint32_t CountUpTo(uint32_t* count, uint32_t last) {
  return __builtin_amdgcn_atomic_inc32(count, last, __ATOMIC_RELAXED, "agent");
}

// A release waits for the stores of its own wavefront, and a barrier for none (code of Clang 19;
// for GFX10 and later see llvm-project#161638): each wavefront must have waited for its own.
__device__ __forceinline__ void ReleaseBeforeBarrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
}

__device__ __forceinline__ void LetNextKernelStart() {}

// The constant clock of gfx90a and gfx942 counts at 100 MHz (HIP's wall_clock64).
__device__ __forceinline__ uint64_t GlobalNanoseconds() {
  return __builtin_amdgcn_s_memrealtime() * 10;
}

__device__ __forceinline__ void StopKernel() { __builtin_trap(); }

}  // namespace moeprof::gpu
