#include <cuda.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/runtime/driver_calls.h"
#include "stress/gpu_process_rank.h"

namespace moeprof::gpu {
namespace {

int g_rank = -1;

__host__ __device__ uint32_t Pattern(uint32_t seed, size_t i) {
  return seed * 2654435761u + static_cast<uint32_t>(i) * 40503u;
}

__global__ void FillPattern(uint32_t* words, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    words[i] = Pattern(seed, i);
  }
}

// first: the lowest index of a wrong word.
__global__ void FindWrong(const uint32_t* words, size_t count, uint32_t seed,
                          unsigned long long* first) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    if (words[i] != Pattern(seed, i)) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

}  // namespace

void Expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed in rank %d: %s\n", g_rank, what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

void Check(cudaError_t error, const char* what) {
  Expect(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorName(error));
}

namespace {

const DriverCalls& Driver() {
  std::string missing;
  const DriverCalls* const driver = LoadDriverCalls(missing);
  Expect(driver != nullptr, "driver has no " + missing);
  return *driver;
}

}  // namespace

void Fill(void* words, size_t bytes, uint32_t seed) {
  FillPattern<<<64, 256>>>(static_cast<uint32_t*>(words), bytes / 4, seed);
  Check(cudaGetLastError(), "fill");
}

void ExpectPattern(const void* words, size_t bytes, uint32_t seed, const std::string& what) {
  unsigned long long* first = nullptr;
  Check(cudaMallocManaged(&first, sizeof(*first)), "managed");
  *first = ~0ull;
  FindWrong<<<64, 256>>>(static_cast<const uint32_t*>(words), bytes / 4, seed, first);
  Check(cudaDeviceSynchronize(), what.c_str());
  Expect(*first == ~0ull, what + ": first wrong word " + std::to_string(*first) + " of " +
                              std::to_string(bytes / 4));
  cudaFree(first);
}

Mapped MapNew(size_t bytes, int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  void* create = nullptr;
  cudaDriverEntryPointQueryResult found;
  Check(cudaGetDriverEntryPointByVersion("cuMemCreate", &create, 12000, cudaEnableDefault, &found),
        "cuMemCreate");
  Mapped mapped;
  mapped.bytes = (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);
  const DriverCalls& driver = Driver();
  const auto mem_create = reinterpret_cast<decltype(&cuMemCreate)>(create);
  Expect(mem_create(&mapped.handle, mapped.bytes, &properties, 0) == CUDA_SUCCESS, "cuMemCreate");
  Expect(driver.mem_address_reserve(&mapped.base, mapped.bytes, 0, 0, 0) == CUDA_SUCCESS,
         "cuMemAddressReserve");
  Expect(driver.mem_map(mapped.base, mapped.bytes, 0, mapped.handle, 0) == CUDA_SUCCESS,
         "cuMemMap");
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Expect(driver.mem_set_access(mapped.base, mapped.bytes, &access, 1) == CUDA_SUCCESS,
         "cuMemSetAccess");
  return mapped;
}

void Unmap(const Mapped& mapped) {
  const DriverCalls& driver = Driver();
  Check(cudaDeviceSynchronize(), "before unmap");
  Expect(driver.mem_unmap(mapped.base, mapped.bytes) == CUDA_SUCCESS, "cuMemUnmap");
  Expect(driver.mem_release(mapped.handle) == CUDA_SUCCESS, "cuMemRelease");
  Expect(driver.mem_address_free(mapped.base, mapped.bytes) == CUDA_SUCCESS, "cuMemAddressFree");
}

std::unique_ptr<ProcessExchange> Join(const std::string& token, int rank, int ranks, int& device) {
  int count = 0;
  Check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  device = rank % count;
  Check(cudaSetDevice(device), "cudaSetDevice");
  auto joined = ProcessExchange::Join(token, rank, ranks, device, kFlagBytes, kLong);
  if (auto* failure = std::get_if<Failure>(&joined)) Expect(false, failure->text);
  return std::move(std::get<std::unique_ptr<ProcessExchange>>(joined));
}

ProcessExchange::Pointers MustMeet(ProcessExchange& exchange, const PeerCall& call) {
  auto met = exchange.Meet(call, kLong);
  if (auto* failure = std::get_if<Failure>(&met)) Expect(false, failure->text);
  return std::get<ProcessExchange::Pointers>(met);
}

void Barrier(ProcessExchange& exchange) { MustMeet(exchange, {"barrier", {}, {}}); }

void ReadAndWrite(ProcessExchange& exchange, void* words, size_t bytes, uint32_t round) {
  const int rank = exchange.rank(), ranks = exchange.ranks();
  Fill(words, bytes, round * 100 + static_cast<uint32_t>(rank));
  Check(cudaDeviceSynchronize(), "fill");
  const auto pointers =
      MustMeet(exchange, {"read", {static_cast<int64_t>(bytes)}, {{words, bytes}, {nullptr, 0}}});
  for (int peer = 0; peer < ranks; ++peer) {
    Expect(pointers[peer][1] == nullptr, "null stays null");
    ExpectPattern(pointers[peer][0], bytes, round * 100 + static_cast<uint32_t>(peer),
                  "round " + std::to_string(round) + ", words of rank " + std::to_string(peer));
  }
  Barrier(exchange);
  // Rank r writes the r-th part of every peer's buffer.
  const size_t part = bytes / static_cast<size_t>(ranks) / 16 * 16;
  for (int peer = 0; peer < ranks; ++peer) {
    Fill(static_cast<char*>(pointers[peer][0]) + part * static_cast<size_t>(rank), part,
         round * 100 + 50 + static_cast<uint32_t>(rank));
  }
  Check(cudaDeviceSynchronize(), "write");
  Barrier(exchange);
  for (int peer = 0; peer < ranks; ++peer) {
    ExpectPattern(
        static_cast<char*>(words) + part * static_cast<size_t>(peer), part,
        round * 100 + 50 + static_cast<uint32_t>(peer),
        "round " + std::to_string(round) + ", what rank " + std::to_string(peer) + " wrote here");
  }
  Barrier(exchange);
}

void InProcesses(int ranks, const std::function<void(const std::string&, int)>& body, int killed) {
  const std::string token = "gpu-stress-" + std::to_string(getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      g_rank = rank;
      body(token, rank);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool all_good = true;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    const bool good = rank == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                     : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good) std::fprintf(stderr, "rank %d ended with status 0x%x\n", rank, status);
    all_good = all_good && good;
  }
  if (!all_good) std::exit(1);
}

}  // namespace moeprof::gpu
