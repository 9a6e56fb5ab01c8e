// Question: which Hopper instructions do our kernels use, and what does each one mean?
//
// Thin names for PTX; nothing here decides anything. Shared memory is named by its 32-bit address
// in the shared window; within a cluster the own block's address is also its cluster address.
// Source of semantics: PTX ISA 8.5, sections on mbarrier, cp.async.bulk.tensor and tensormap.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/runtime/device_code.h"

namespace moeprof::gpu {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- clusters

__device__ __forceinline__ uint32_t RankInCluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster meet; what they wrote before is visible after.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// ---- barriers in shared memory

__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster and to TMA.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once and announces `bytes` that TMA will deliver in this phase.
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives at the barrier of the same address in block `rank` of the cluster. It orders what this
// block's threads see, no more: with .release.cluster the compiler puts MEMBAR.ALL.GPU in front,
// in the loop over stages. Who waits here only overwrites what was read before: by wgmma, which has
// ended, or by the thread that arrives.
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Writes `word` to the address `to` of block `rank` of the cluster and counts its 4 bytes at that
// block's `barrier`.
__device__ __forceinline__ void SendWord(uint32_t to, uint32_t barrier, uint32_t rank,
                                         uint32_t word) {
  asm volatile(
      "{\n.reg .b32 there, bell;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 bell, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %3, [bell];\n}" ::"r"(to),
      "r"(barrier), "r"(rank), "r"(word)
      : "memory");
}

__device__ __forceinline__ uint32_t LoadShared(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ int4 LoadShared4(uint32_t address) {
  int4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ __forceinline__ void StoreShared4(uint32_t address, int4 words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ __forceinline__ bool BarrierTryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits for the phase of this parity to end. Every wait is for work of this kernel alone, so one
// that takes 20 s is a fault of the kernel: it traps rather than hang.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  constexpr uint64_t kLimitNs = 20'000'000'000;
  if (BarrierTryWait(barrier, parity)) return;
  const uint64_t start = GlobalNanoseconds();
  while (!BarrierTryWait(barrier, parity)) {
    if (GlobalNanoseconds() - start > kLimitNs) __trap();
  }
}

// Threads of a block meet at hardware barrier `id` (0 is __syncthreads).
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- TMA: box copies between global and shared memory

__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                        int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                        int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The same box to the same address in every block of `mask`, signalling each one's barrier.
__device__ __forceinline__ void LoadBoxToAll(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                             uint16_t mask, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(mask), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void LoadBoxToAll(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                             uint16_t mask, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(mask), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void StoreBox(const CUtensorMap* map, uint32_t from, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void StoreBox(const CUtensorMap* map, uint32_t from, int x, int y,
                                         int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void StoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most kPending of this thread's groups of stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void StoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Ordinary writes of shared memory before, TMA reads after.
__device__ __forceinline__ void FenceForTma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- tensor maps made on the device

__device__ __forceinline__ void MapSetAddress(uint32_t map, const void* address) {
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(map),
               "l"(address)
               : "memory");
}
__device__ __forceinline__ void MapSetRows(uint32_t map, uint32_t rows) {
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(map),
               "r"(rows)
               : "memory");
}
// A whole warp copies a map from shared to global memory and releases it to TMA of this GPU.
__device__ __forceinline__ void MapPublish(CUtensorMap* to, uint32_t from) {
  asm volatile(
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
      "[%0], [%1], 128;" ::"l"(to),
      "r"(from)
      : "memory");
}
__device__ __forceinline__ void MapAcquire(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// ---- registers and fragments

// Gives registers of this warpgroup back, or takes them; every warp of it must ask.
template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ClaimRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void StoreMatrices(uint32_t address, uint32_t r0, uint32_t r1,
                                              uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace moeprof::gpu
