// Question: do the threads of an EP group meet as they should when ranks fail, leave or come late?
//
// No GPU: the few calls of the CUDA runtime that local_exchange.cc makes are stood in for here.
//
//   moeprof_local_exchange_stress [ROUNDS] [SEED]
//
// In each round every rank runs a program of a few calls. A rank may fail in the middle of it, in
// an exchange or in another operation, and goes on with the next program. Exits 1 at the first
// program that a healthy group did not finish, that one rank finished and another did not, that
// met the wrong call, or that waited for its timeout where a reason was known.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/faults/fault_report.h"
#include "gpu/meeting/local_exchange.h"
#include "gpu/runtime/device_memory.h"

// The runtime's stand-ins.
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::calloc(1, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return cudaFreeHost(memory); }

namespace moeprof::gpu {

std::atomic<int64_t> faults[kMaxRanks];

std::variant<FaultSink, Failure> SinkOfCurrentDevice() { return FaultSink{}; }
std::variant<void*, gpuError_t> AllocateZeroed(size_t bytes) { return std::calloc(1, bytes); }
FaultsTaken FaultsTakenFrom(int device) { return {faults[device].load(), "its product failed"}; }

}  // namespace moeprof::gpu

namespace {

using moeprof::Failure;
using namespace moeprof::gpu;

constexpr int kCalls = 5;
constexpr std::chrono::milliseconds kTimeout{2000};

enum class Trouble { kNone, kRefuses, kFailsElsewhere, kLeaves, kOtherSizes };

struct Program {
  int64_t run;
  int rank = -1, call = 0;  // who has trouble, before which call
  Trouble trouble = Trouble::kNone;
};

// What one rank saw of a program: how many calls it made and why it ended.
struct Seen {
  int calls = 0;
  std::string failure;
};

struct Rank {
  int rank;
  uint64_t last_number = 0;
  std::vector<Seen> seen;
  std::string wrong;
};

std::string Check(const Met& met, int64_t run, int call, int ranks, Rank& self) {
  if (met.number <= self.last_number) return "call numbers do not grow";
  self.last_number = met.number;
  for (int r = 0; r < ranks; ++r) {
    const auto found = reinterpret_cast<uintptr_t>(met.pointers[r][0]);
    const auto expected = static_cast<uintptr_t>((run * kCalls + call) * kMaxRanks + r + 1);
    if (found != expected) return "met another call of rank " + std::to_string(r);
  }
  return "";
}

Seen Run(LocalExchange& exchange, const Program& program, int ranks, Rank& self) {
  Seen seen;
  for (int call = 0; call < kCalls; ++call) {
    PeerCall mine{"op", {call}, {}};
    const auto mark = (program.run * kCalls + call) * kMaxRanks + self.rank + 1;
    mine.buffers = {{reinterpret_cast<void*>(mark), 1}};
    if (program.rank == self.rank && program.call == call) {
      if (program.trouble == Trouble::kRefuses) {
        exchange.Refuse(self.rank, "op", "an unsound operand", program.run);
        seen.failure = "refused";
        return seen;
      }
      if (program.trouble == Trouble::kFailsElsewhere) ++faults[self.rank];
      if (program.trouble == Trouble::kFailsElsewhere || program.trouble == Trouble::kLeaves) {
        seen.failure = "left";
        return seen;
      }
      if (program.trouble == Trouble::kOtherSizes) mine.signature = {call, 1};
    }
    auto met = exchange.Meet(self.rank, mine, kTimeout, program.run);
    if (auto* failure = std::get_if<Failure>(&met)) {
      seen.failure = failure->text;
      return seen;
    }
    self.wrong += Check(std::get<Met>(met), program.run, call, ranks, self);
    ++seen.calls;
  }
  return seen;
}

std::string Judge(const Program& program, const std::vector<Rank>& all, size_t i) {
  const bool is_sound = program.trouble == Trouble::kNone;
  for (const Rank& rank : all) {
    const Seen& seen = rank.seen[i];
    const int expected = is_sound ? kCalls : program.call;
    const std::string who = "rank " + std::to_string(rank.rank);
    if (seen.calls != expected) {
      return who + " made " + std::to_string(seen.calls) + " calls, expected " +
             std::to_string(expected) + "; it ended with: " + seen.failure;
    }
    if (!is_sound && seen.failure.empty()) return who + " did not fail";
    if (seen.failure.find("did not arrive") == std::string::npos) continue;
    // A rank that failed before its first exchange of the run leaves no reason behind.
    const bool is_silent = program.call == 0 && (program.trouble == Trouble::kLeaves ||
                                                 program.trouble == Trouble::kFailsElsewhere);
    if (!is_silent) return who + " waited for its timeout: " + seen.failure;
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  std::mt19937_64 random(argc > 2 ? std::atoi(argv[2]) : 1);
  for (int ranks : {2, 3, 8}) {
    std::vector<int64_t> devices(ranks);
    for (int r = 0; r < ranks; ++r) devices[r] = r;
    auto made = LocalExchange::Make(devices, [] { return cudaSuccess; });
    auto exchange = std::get<std::shared_ptr<LocalExchange>>(made);
    std::vector<Program> programs(rounds);
    for (int i = 0; i < rounds; ++i) {
      Program& program = programs[i];
      program.run = static_cast<int64_t>(random() % 1000000) * 1000 + i;
      // The last is sound: after every trouble the group is whole again.
      if (i + 1 == rounds || random() % 2 == 0) continue;
      program.rank = static_cast<int>(random() % ranks);
      program.trouble = static_cast<Trouble>(1 + random() % 4);
      const bool is_silent = program.trouble == Trouble::kLeaves;
      program.call = static_cast<int>(random() % (kCalls - 1)) + (is_silent ? 1 : 0);
      if (program.trouble == Trouble::kFailsElsewhere) program.call += program.call == 0;
    }
    std::vector<Rank> all(ranks);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      all[r].rank = r;
      const uint64_t seed = random();
      threads.emplace_back([&, r, seed] {
        std::mt19937_64 own(seed);
        for (const Program& program : programs) {
          if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
          all[r].seen.push_back(Run(*exchange, program, ranks, all[r]));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Rank& rank : all) {
      if (rank.wrong.empty()) continue;
      std::printf("%d ranks: rank %d: %s\n", ranks, rank.rank, rank.wrong.c_str());
      return 1;
    }
    for (int i = 0; i < rounds; ++i) {
      const std::string wrong = Judge(programs[i], all, i);
      if (wrong.empty()) continue;
      std::printf("%d ranks, program %d (trouble %d of rank %d before call %d): %s\n", ranks, i,
                  static_cast<int>(programs[i].trouble), programs[i].rank, programs[i].call,
                  wrong.c_str());
      return 1;
    }
  }
  std::printf("ok: %d programs each with 2, 3 and 8 ranks\n", rounds);
  return 0;
}
