// Question: do processes see each other's GPU memory through the exchange, whatever its kind?
//
// Forks a process per rank, spread over the visible GPUs, before any of them touches CUDA. Each
// scenario checks what every rank saw. Usage: PROGRAM SCENARIO [ranks]. Prints "ok NAME", or what
// went wrong and exits with 1; no scenario lasts longer than a minute.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "gpu/processes/process_exchange.h"
#include "gpu/runtime/driver_calls.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLong{30000};
constexpr size_t kFlagBytes = 4096;

int g_rank = -1;

void Expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed in rank %d: %s\n", g_rank, what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

void Check(cudaError_t error, const char* what) {
  Expect(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorName(error));
}

const DriverCalls& Driver() {
  std::string missing;
  const DriverCalls* const driver = LoadDriverCalls(missing);
  Expect(driver != nullptr, "driver has no " + missing);
  return *driver;
}

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

__global__ void CopyWords(uint4* to, const uint4* from, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = from[i];
  }
}

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

// Memory as XLA takes it: physical memory that can be exported, mapped at an address of its own.
struct Mapped {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};

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

// Nobody goes on before all have come.
void Barrier(ProcessExchange& exchange) { MustMeet(exchange, {"barrier", {}, {}}); }

// Reads every peer's words, then writes others into every peer's second half.
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

void InProcesses(int ranks, const std::function<void(const std::string&, int)>& body,
                 int killed = -1) {
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

void MappedMemory(int ranks) {
  InProcesses(ranks, [ranks](const std::string& token, int rank) {
    int device = 0;
    auto exchange = Join(token, rank, ranks, device);
    const Mapped pool = MapNew(size_t{256} << 20, device);
    for (uint32_t round = 1; round <= 5; ++round) {
      const size_t offset = size_t{round * 1000} * 256;
      ReadAndWrite(*exchange, reinterpret_cast<char*>(pool.base) + offset, 12345 * 16, round);
    }
    exchange.reset();
    Unmap(pool);
  });
}

void PlainMemory(int ranks) {
  InProcesses(ranks, [ranks](const std::string& token, int rank) {
    int device = 0;
    auto exchange = Join(token, rank, ranks, device);
    void* words = nullptr;
    Check(cudaMalloc(&words, size_t{8} << 20), "cudaMalloc");
    for (uint32_t round = 1; round <= 5; ++round) {
      ReadAndWrite(*exchange, static_cast<char*>(words) + round * 4096, 54321 * 16, round);
    }
    exchange.reset();
    cudaFree(words);
  });
}

// Memory without a pool: an allocation per round, at addresses that come back.
void ChangingMemory(int ranks) {
  InProcesses(ranks, [ranks](const std::string& token, int rank) {
    int device = 0;
    auto exchange = Join(token, rank, ranks, device);
    std::vector<Mapped> kept;
    for (uint32_t round = 1; round <= 80; ++round) {
      const Mapped mapped = MapNew(size_t{1} << 20, device);
      ReadAndWrite(*exchange, reinterpret_cast<void*>(mapped.base), size_t{1} << 20, round);
      kept.push_back(mapped);
      if (round % 3 != 0) {
        Unmap(kept.back());
        kept.pop_back();
      }
    }
    for (uint32_t i = 0; i < kept.size(); ++i) {
      ReadAndWrite(*exchange, reinterpret_cast<void*>(kept[i].base), size_t{1} << 20, 200 + i);
    }
  });
}

void MemoryThatCannotBeShared(int ranks) {
  InProcesses(ranks, [ranks](const std::string& token, int rank) {
    int device = 0;
    auto exchange = Join(token, rank, ranks, device);
    void* words = nullptr;
    Check(cudaMallocAsync(&words, 4096, nullptr), "cudaMallocAsync");
    Check(cudaDeviceSynchronize(), "cudaMallocAsync");
    auto met = exchange->Meet({"dispatch", {1}, {{words, 4096}}}, kLong);
    Expect(std::holds_alternative<Failure>(met), "expected a refusal");
    const std::string& text = std::get<Failure>(met).text;
    if (rank == 0) std::printf("  %s\n", text.c_str());
    Expect(text.find("unset XLA_PYTHON_CLIENT_ALLOCATOR") != std::string::npos, text);
  });
}

void Flags(int ranks) {
  InProcesses(ranks, [ranks](const std::string& token, int rank) {
    int device = 0;
    auto exchange = Join(token, rank, ranks, device);
    const size_t part = kFlagBytes / 8;
    for (int peer = 0; peer < ranks; ++peer) {
      Fill(static_cast<char*>(exchange->flags()[peer]) + part * static_cast<size_t>(rank), part,
           static_cast<uint32_t>(rank));
    }
    Check(cudaDeviceSynchronize(), "flags");
    Barrier(*exchange);
    for (int peer = 0; peer < ranks; ++peer) {
      ExpectPattern(static_cast<char*>(exchange->flags()[rank]) + part * static_cast<size_t>(peer),
                    part, static_cast<uint32_t>(peer), "flags from " + std::to_string(peer));
    }
  });
}

void OneIsKilled(int ranks) {
  InProcesses(
      ranks,
      [ranks](const std::string& token, int rank) {
        int device = 0;
        auto exchange = Join(token, rank, ranks, device);
        const Mapped pool = MapNew(size_t{64} << 20, device);
        ReadAndWrite(*exchange, reinterpret_cast<void*>(pool.base), size_t{1} << 20, 1);
        if (rank == 1) kill(getpid(), SIGKILL);
        const auto start = Clock::now();
        auto met = exchange->Meet({"combine", {1}, {}}, kLong);
        const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
        Expect(std::holds_alternative<Failure>(met), "expected a failure");
        const std::string& text = std::get<Failure>(met).text;
        if (rank == 0) std::printf("  after %d ms: %s\n", static_cast<int>(waited), text.c_str());
        Expect(text.find("EP rank 1 (process ") != std::string::npos, text);
      },
      1);
}

double MedianUs(const std::function<void()>& run, int repeats) {
  std::vector<float> times;
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  for (int i = 0; i < repeats + 3; ++i) {
    Check(cudaEventRecord(begin), "record");
    run();
    Check(cudaEventRecord(end), "record");
    Check(cudaEventSynchronize(end), "run");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(ms * 1000);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// A timing, not a check: a meeting, and copies over the mappings in both directions at once.
void Bench(int ranks) {
  InProcesses(ranks, [ranks](const std::string& token, int rank) {
    int device = 0;
    auto exchange = Join(token, rank, ranks, device);
    const size_t bytes = size_t{4096} * 7168 * 2;
    const Mapped pool = MapNew(4 * bytes, device);
    char* const from = reinterpret_cast<char*>(pool.base);
    char* const to = from + 2 * bytes;
    Fill(from, bytes, 1);
    const PeerCall call{"bench", {1}, std::vector<PeerBuffer>(12, {from, bytes})};
    MustMeet(*exchange, call);
    const auto start = Clock::now();
    constexpr int kMeetings = 1000;
    for (int i = 0; i < kMeetings; ++i) MustMeet(*exchange, call);
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    const auto pointers = MustMeet(*exchange, {"bench", {2}, {{from, bytes}, {to, bytes}}});
    const int peer = (rank + 1) % ranks;
    const size_t words = bytes / 16;
    Barrier(*exchange);
    const double pull = MedianUs(
        [&] {
          CopyWords<<<64, 1024>>>(reinterpret_cast<uint4*>(to),
                                  static_cast<const uint4*>(pointers[peer][0]), words);
        },
        50);
    Barrier(*exchange);
    const double push = MedianUs(
        [&] {
          CopyWords<<<64, 1024>>>(static_cast<uint4*>(pointers[peer][1]),
                                  reinterpret_cast<const uint4*>(from), words);
        },
        50);
    Barrier(*exchange);
    if (rank == 0) {
      std::printf(
          "  meeting with 12 buffers %.1f us; 58.7 MB over the mapping: pull %.1f us "
          "(%.0f GB/s), push %.1f us (%.0f GB/s)\n",
          taken.count() / kMeetings, pull, static_cast<double>(bytes) / pull / 1e3, push,
          static_cast<double>(bytes) / push / 1e3);
      std::fflush(stdout);
    }
  });
}

}  // namespace
}  // namespace moeprof::gpu

int main(int argc, char** argv) {
  using namespace moeprof::gpu;  // NOLINT: the scenarios of this program
  const std::vector<std::pair<std::string, void (*)(int)>> scenarios = {
      {"mapped-memory", MappedMemory},
      {"plain-memory", PlainMemory},
      {"changing-memory", ChangingMemory},
      {"memory-that-cannot-be-shared", MemoryThatCannotBeShared},
      {"flags", Flags},
      {"one-is-killed", OneIsKilled},
      {"bench", Bench}};
  for (const auto& [name, run] : scenarios) {
    if (argc < 2 || name != argv[1]) continue;
    run(argc > 2 ? std::atoi(argv[2]) : 2);
    std::printf("ok %s\n", name.c_str());
    return 0;
  }
  std::fprintf(stderr, "usage: %s SCENARIO [ranks]; scenarios:", argv[0]);
  for (const auto& [name, run] : scenarios) std::fprintf(stderr, " %s", name.c_str());
  std::fprintf(stderr, "\n");
  return 2;
}
