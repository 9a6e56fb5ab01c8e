// Question: do processes see each other's GPU memory through the exchange, whatever its kind?
//
// Forks a process per rank, spread over the visible GPUs, before any of them touches CUDA. Each
// scenario checks what every rank saw. Usage: PROGRAM SCENARIO [ranks]. Prints "ok NAME", or what
// went wrong and exits with 1; no scenario lasts longer than a minute.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/processes/process_exchange.h"
#include "stress/gpu_process_rank.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

__global__ void CopyWords(uint4* to, const uint4* from, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = from[i];
  }
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
