// Question: does any order of events between GPUs make dispatch, combine or cached dispatch wrong?
//
//   gpu_exchange_stress [--rounds N] [--seconds S] [--seed N] [--ranks N] [--most-bytes N]
//   gpu_exchange_stress --bench            times between two GPUs
//   gpu_exchange_stress --missing-rank     a rank that never comes: what the others say
//   gpu_exchange_stress --missing-kernel   a rank that comes, but whose GPU never does
//
// Ranks are threads of this process, spread over the visible GPUs; several share one where there
// are more ranks. Every round draws sizes, dtypes, routing, delays and numbers of blocks; results
// are compared bit for bit with the CPU kernels'. Without --ranks, every number from 2 to 8 in
// turn. Ends with "ok", or after the first rounds that went wrong with what differs; never waits
// for ever.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "stress/gpu_exchange_bench.h"
#include "stress/gpu_exchange_compare.h"
#include "stress/gpu_exchange_rank.h"

namespace moeprof::stress {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kMostWrongRounds = 3;
constexpr int kMostRanks = gpu::kMaxRanks;
constexpr milliseconds kLimit{40000};

struct Options {
  int64_t rounds = 200, seed = 1, ranks = 0, seconds = 120, most_bytes = 2 << 20;
  std::string mode;
};

struct Group {
  std::shared_ptr<gpu::LocalExchange> exchange;
  std::vector<std::unique_ptr<GpuRank>> ranks;
  int most_blocks;
};

[[noreturn]] void Fail(const std::string& text) {
  std::printf("FAILED %s\n", text.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void OnAllRanks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
}

// Blocks that wait keep their multiprocessor: those of all ranks of a GPU must fit at once, and
// leave some for the kernels that they wait for.
Group MakeGroup(int ranks, size_t most_bytes) {
  int devices = 0, multiprocessors = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) Fail("no GPU");
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  std::vector<int64_t> of_rank;
  for (int r = 0; r < ranks; ++r) of_rank.push_back(r % devices);
  auto made = gpu::LocalExchange::Make(of_rank, LoadKernels);
  if (auto* failure = std::get_if<Failure>(&made)) Fail(failure->text);
  Group group;
  group.exchange = std::get<std::shared_ptr<gpu::LocalExchange>>(made);
  for (int r = 0; r < ranks; ++r) {
    group.ranks.push_back(std::make_unique<GpuRank>(group.exchange, r, most_bytes));
  }
  const int sharing = (ranks + devices - 1) / devices;
  group.most_blocks = std::max(1, std::min(64, (multiprocessors - 16) / sharing));
  return group;
}

// The complaint of the rank.
std::string CheckRank(const Case& round, GpuRank& rank, const std::vector<Inputs>& inputs,
                      const std::vector<Plan>& plans, int r) {
  const bool is_sound = round.unsound_rank < 0;
  const Results expected = is_sound ? ExpectedOf(round, inputs, plans, r) : Results{};
  if (auto complaint = rank.Wait(kLimit); !complaint.empty()) return complaint;
  const Results found = rank.Fetch(round);
  if (!is_sound) return NotUseless(round, found);
  return Differences(round, rank.FetchPlan(round), plans[r]) + Differences(round, found, expected);
}

// What kernels reported: nothing, or the ids on the rank that has them.
std::string CheckFaults(const Case& round, const Group& group) {
  std::string complaint;
  std::map<int, std::string> of_device;
  for (const auto& rank : group.ranks) {
    std::string text = rank->TakeFault();
    if (!text.empty()) of_device[rank->device()] = text;
  }
  if (round.unsound_rank < 0) {
    for (const auto& [device, text] : of_device) complaint += "    reported: " + text + "\n";
    return complaint;
  }
  const std::string text = of_device[group.ranks[round.unsound_rank]->device()];
  if (text.find("topk_idx of token") != std::string::npos) return "";
  return "    expected a report about topk_idx, found: " + text + "\n";
}

std::string RunRound(const Case& round, Group& group) {
  const int ranks = round.ranks;
  std::vector<Inputs> inputs(ranks);
  std::vector<Plan> plans(ranks);
  std::vector<std::string> complaints(ranks);
  OnAllRanks(ranks, [&](int r) {
    inputs[r] = DrawInputs(round, r);
    plans[r] = PlanOf(round, inputs[r]);
  });
  const int choices[] = {1, 3, group.most_blocks, group.most_blocks};
  const int blocks = std::min(choices[round.seed % 4], group.most_blocks);
  const int delay_us = round.seed % 3 == 0 ? 0 : 200;
  OnAllRanks(ranks, [&](int r) {
    complaints[r] = group.ranks[r]->Launch(round, inputs[r], blocks, delay_us);
    if (complaints[r].empty()) {
      complaints[r] = CheckRank(round, *group.ranks[r], inputs, plans, r);
    }
  });
  std::string all = CheckFaults(round, group);
  for (int r = 0; r < ranks; ++r) {
    if (!complaints[r].empty()) all += "  rank " + std::to_string(r) + "\n" + complaints[r] + "\n";
  }
  return all.empty() ? "" : "blocks " + std::to_string(blocks) + "\n" + all;
}

int RunRounds(const Options& options) {
  std::map<int, Group> groups;
  const size_t buffer_bytes = static_cast<size_t>(options.most_bytes) + (2 << 20);
  const auto start = Clock::now();
  const auto end = start + std::chrono::seconds(options.seconds);
  int64_t done = 0, wrong = 0;
  for (; done < options.rounds && wrong < kMostWrongRounds && Clock::now() < end; ++done) {
    const uint64_t seed = static_cast<uint64_t>(options.seed) * 1000003 + done;
    // A number of ranks keeps for some rounds, so that calls of one group follow each other.
    const int ranks = options.ranks > 0 ? static_cast<int>(options.ranks)
                                        : 2 + static_cast<int>(done / 5 % (kMostRanks - 1));
    if (groups.count(ranks) == 0) groups[ranks] = MakeGroup(ranks, buffer_bytes);
    const Case round = RandomCase(seed, ranks, options.most_bytes);
    const std::string complaint = RunRound(round, groups[ranks]);
    if (complaint.empty()) continue;
    ++wrong;
    std::printf("WRONG round %ld, %s, %s", static_cast<long>(done), round.Text().c_str(),
                complaint.c_str());
    std::fflush(stdout);
    if (complaint.find("in time") != std::string::npos ||
        complaint.find("kernels failed") != std::string::npos ||
        complaint.find("waited") != std::string::npos ||
        complaint.find("did not arrive") != std::string::npos) {
      break;  // what comes after says nothing
    }
  }
  std::printf("%s: %ld of %ld rounds, %ld wrong, %.1f s\n", wrong == 0 ? "ok" : "FAILED",
              static_cast<long>(done), static_cast<long>(options.rounds), static_cast<long>(wrong),
              std::chrono::duration<double>(Clock::now() - start).count());
  std::fflush(stdout);
  if (wrong > 0) std::_Exit(1);  // a kernel that hangs would hold up what runs at exit
  std::exit(0);                  // a sanitizer reports then
}

Case SmallCase() {
  Case round = RandomCase(3, 2, 1 << 20);
  round.unsound_rank = -1;
  return round;
}

// Only rank 0 comes: its host thread gives up after a second and names rank 1.
int RunMissingRank() {
  Group group = MakeGroup(2, 4 << 20);
  const Case round = SmallCase();
  group.ranks[0]->Enter();
  group.ranks[0]->set_timeout(milliseconds(1000));
  const auto start = Clock::now();
  const std::string text = group.ranks[0]->MeetOnly(round);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("after %.2f s: %s\n", seconds, text.c_str());
  const bool is_right = text.find("did not arrive within 1 s") != std::string::npos && seconds < 3;
  std::printf("%s\n", is_right ? "ok" : "FAILED: expected rank 1 to be named after a second");
  return is_right ? 0 : 1;
}

// Both ranks' threads come, but GPU 1 is given nothing to do: the kernel of rank 0 gives up after a
// second, reports and ends its context.
int RunMissingKernel() {
  Group group = MakeGroup(2, 4 << 20);
  const Case round = SmallCase();
  std::string complaint;
  const auto start = Clock::now();
  OnAllRanks(2, [&](int r) {
    GpuRank& rank = *group.ranks[r];
    rank.Enter();
    rank.set_timeout(milliseconds(1000));
    if (r == 1) {
      rank.MeetOnly(round);
      return;
    }
    const Inputs inputs = DrawInputs(round, 0);
    complaint = rank.Upload(round, inputs);
    if (complaint.empty()) complaint = rank.Dispatch(round, 8);
    if (complaint.empty()) complaint = rank.Wait(milliseconds(10000));
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("after %.2f s: %s\n", seconds, complaint.c_str());
  std::this_thread::sleep_for(milliseconds(500));  // for the watcher's line
  const bool is_right = complaint.find("waited") != std::string::npos && seconds < 5;
  std::printf("%s\n", is_right ? "ok" : "FAILED: expected a report about rank 1 after a second");
  std::fflush(stdout);
  std::_Exit(is_right ? 0 : 1);
}

int64_t* NumberFor(Options& options, const char* name) {
  if (std::strcmp(name, "--rounds") == 0) return &options.rounds;
  if (std::strcmp(name, "--seconds") == 0) return &options.seconds;
  if (std::strcmp(name, "--seed") == 0) return &options.seed;
  if (std::strcmp(name, "--ranks") == 0) return &options.ranks;
  if (std::strcmp(name, "--most-bytes") == 0) return &options.most_bytes;
  return nullptr;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    int64_t* const number = NumberFor(options, argv[i]);
    if (number == nullptr) {
      options.mode = argv[i];
    } else if (++i < argc) {
      *number = std::atoll(argv[i]);
    }
  }
  return options;
}

int Run(const Options& options) {
  if (options.mode.empty()) return RunRounds(options);
  if (options.mode == "--bench") return RunBench();
  if (options.mode == "--missing-rank") return RunMissingRank();
  if (options.mode == "--missing-kernel") return RunMissingKernel();
  std::fprintf(stderr, "unknown option %s\n", options.mode.c_str());
  return 2;
}

}  // namespace
}  // namespace moeprof::stress

int main(int argc, char** argv) {
  // Streams of ranks that share a GPU must not wait in one queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return moeprof::stress::Run(moeprof::stress::Parse(argc, argv));
}
