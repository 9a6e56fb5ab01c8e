// Question: how is one Hopper warpgroup matrix instruction issued?
//
// wgmma multiplies a 64 x 16 tile of A by a 16 x N tile of B, both in shared memory, and adds to
// float32 accumulators in registers. Thread t of the warpgroup (warp w = t / 32, lane l = t % 32)
// holds, for every 8 columns j: acc[4 j + 0, 1] of row 16 w + l / 4 and acc[4 j + 2, 3] of the row
// 8 below, columns 8 j + 2 (l % 4) and the next. Source: PTX ISA, "wgmma register fragments".
//
// Both operands are made of chunks of 64 rows of 128 bytes, swizzled in 16-byte units by
// (row % 8), as TMA writes them with CU_TENSOR_MAP_SWIZZLE_128B. A chunk starts at a multiple of
// 1024 bytes.
//   K-major    a row holds 64 values along k; 8 rows take 1024 bytes; 16 values of k are 32 bytes
//   MN-major   a row holds 64 values along m or n; 64 rows along k; the next 64 of m or n lie in
//              the next chunk, 8192 bytes on; 16 values of k are 16 rows, 2048 bytes
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace moeprof::gpu {

enum Major : int { kMajorK = 0, kMajorMN = 1 };  // the instruction's transpose bits

constexpr int kChunkBytes = 8192;  // 64 rows of 128 bytes

// The descriptor of a chunk that starts at shared address `address`: bits 0-13 address / 16,
// 16-29 bytes between chunks / 16 (MN-major only), 32-45 bytes between 8 rows / 16, 62-63
// swizzle 1 = 128 bytes.
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t address) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{kChunkBytes >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}

// What 16 more values of k add to a descriptor.
__host__ __device__ constexpr uint64_t DescriptorStep(Major major) {
  return (major == kMajorK ? 32 : 2048) >> 4;
}

// Keeps the compiler from moving accesses to an accumulator across this point.
__device__ __forceinline__ void PinAccumulator(float& value) {
  asm volatile("" : "+f"(value)::"memory");
}

__device__ __forceinline__ void WarpgroupArrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WarpgroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define MOEPROF_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MOEPROF_ACC16(i) \
  MOEPROF_ACC4(i), MOEPROF_ACC4(i + 4), MOEPROF_ACC4(i + 8), MOEPROF_ACC4(i + 12)

// d += A B for the 64 x 16 and 16 x kN tiles that the descriptors name.
template <typename T, int kN, Major kMajorA, Major kMajorB>
struct Wgmma;

template <Major kMajorA, Major kMajorB>
struct Wgmma<__nv_bfloat16, 256, kMajorA, kMajorB> {
  __device__ static __forceinline__ void Issue(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
        "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
        "%125, %126, %127}, "
        "%128, %129, p, 1, 1, %130, %131;\n}\n"
        : MOEPROF_ACC16(0), MOEPROF_ACC16(16), MOEPROF_ACC16(32), MOEPROF_ACC16(48),
          MOEPROF_ACC16(64), MOEPROF_ACC16(80), MOEPROF_ACC16(96), MOEPROF_ACC16(112)
        : "l"(a), "l"(b), "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));
  }
};

template <Major kMajorA, Major kMajorB>
struct Wgmma<__half, 256, kMajorA, kMajorB> {
  __device__ static __forceinline__ void Issue(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
        "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
        "%125, %126, %127}, "
        "%128, %129, p, 1, 1, %130, %131;\n}\n"
        : MOEPROF_ACC16(0), MOEPROF_ACC16(16), MOEPROF_ACC16(32), MOEPROF_ACC16(48),
          MOEPROF_ACC16(64), MOEPROF_ACC16(80), MOEPROF_ACC16(96), MOEPROF_ACC16(112)
        : "l"(a), "l"(b), "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));
  }
};

template <Major kMajorA, Major kMajorB>
struct Wgmma<__nv_bfloat16, 128, kMajorA, kMajorB> {
  __device__ static __forceinline__ void Issue(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %66, %67;\n}\n"
        : MOEPROF_ACC16(0), MOEPROF_ACC16(16), MOEPROF_ACC16(32), MOEPROF_ACC16(48)
        : "l"(a), "l"(b), "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));
  }
};

template <Major kMajorA, Major kMajorB>
struct Wgmma<__half, 128, kMajorA, kMajorB> {
  __device__ static __forceinline__ void Issue(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %66, %67;\n}\n"
        : MOEPROF_ACC16(0), MOEPROF_ACC16(16), MOEPROF_ACC16(32), MOEPROF_ACC16(48)
        : "l"(a), "l"(b), "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB)));
  }
};

#undef MOEPROF_ACC16
#undef MOEPROF_ACC4

}  // namespace moeprof::gpu
