// Question: does the sanitizer of this machine see a fault at all?
//
//   gpu_planted_faults out-of-bounds    one write just past an allocation: memcheck must count it
//   gpu_planted_faults race             neighbours in shared memory without a barrier: racecheck
//   must
//
// Without a sanitizer both end with "ok". A sanitizer that finds nothing here says nothing about
// the kernels either.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

namespace {

constexpr int kThreads = 64;

__global__ void WriteUpTo(int* values, int count) {
  if (static_cast<int>(threadIdx.x) < count) values[threadIdx.x] = static_cast<int>(threadIdx.x);
}

__global__ void SwapWithoutBarrier(int* values) {
  __shared__ volatile int shared[kThreads];
  shared[threadIdx.x] = values[threadIdx.x];
  values[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];  // of another warp, unordered
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_race = argc == 2 && std::strcmp(argv[1], "race") == 0;
  if (argc != 2 || (!is_race && std::strcmp(argv[1], "out-of-bounds") != 0)) {
    std::fprintf(stderr, "expected out-of-bounds or race\n");
    return 2;
  }
  int* values = nullptr;
  cudaError_t error = cudaMalloc(&values, kThreads * sizeof(int));
  if (error == cudaSuccess) error = cudaMemset(values, 0, kThreads * sizeof(int));
  if (error == cudaSuccess) {
    if (is_race) {
      SwapWithoutBarrier<<<1, kThreads>>>(values);
    } else {
      WriteUpTo<<<1, 2 * kThreads>>>(values, kThreads + 1);
    }
    error = cudaDeviceSynchronize();
  }
  std::printf("%s\n", error == cudaSuccess ? "ok" : cudaGetErrorName(error));
  return error == cudaSuccess ? 0 : 1;
}
