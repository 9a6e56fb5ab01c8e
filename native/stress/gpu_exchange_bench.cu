#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <variant>

#include "stress/gpu_exchange_bench.h"
#include "stress/gpu_exchange_rank.h"

namespace moeprof::stress {
namespace {

constexpr int kRanks = 2;
constexpr int kHidden = 7168, kTopK = 8, kExperts = 256;
constexpr int kWarmUps = 3, kTimes = 20, kPasses = 3;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorName(error));
  std::fflush(stdout);
  std::_Exit(2);
}

void Check(const std::string& complaint) {
  if (complaint.empty()) return;
  std::printf("FAILED %s\n", complaint.c_str());
  std::fflush(stdout);
  std::_Exit(2);
}

using Ranks = std::vector<std::unique_ptr<GpuRank>>;
using Operation = std::function<void(GpuRank&)>;

void OnAllRanks(Ranks& ranks, const std::function<void(GpuRank&, int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      ranks[r]->Enter();
      body(*ranks[r], r);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Microseconds of every run on the rank's stream. The GPUs wait for each other in every run, so
// what one of them is late counts too.
std::vector<float> TimeOnRank(GpuRank& rank, const Operation& operation) {
  std::vector<cudaEvent_t> events(kTimes + 1);
  for (cudaEvent_t& event : events) Check(cudaEventCreate(&event), "event");
  for (int i = 0; i < kWarmUps; ++i) operation(rank);
  Check(cudaEventRecord(events[0], rank.stream()), "event");
  for (int i = 0; i < kTimes; ++i) {
    operation(rank);
    Check(cudaEventRecord(events[i + 1], rank.stream()), "event");
  }
  Check(rank.Wait(std::chrono::seconds(30)));
  std::vector<float> microseconds(kTimes);
  for (int i = 0; i < kTimes; ++i) {
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, events[i], events[i + 1]), "elapsed time");
    microseconds[i] = milliseconds * 1000;
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  return microseconds;
}

float Median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The slower rank's times.
std::vector<float> Time(Ranks& ranks, const Operation& operation) {
  std::vector<float> of_rank[kRanks];
  OnAllRanks(ranks, [&](GpuRank& rank, int r) { of_rank[r] = TimeOnRank(rank, operation); });
  return Median(of_rank[0]) > Median(of_rank[1]) ? of_rank[0] : of_rank[1];
}

Case BenchCase(int tokens) {
  Case round{};
  round.seed = 7;
  round.ranks = kRanks;
  round.tokens = tokens;
  round.row_bytes = kHidden * 2;
  round.top_k = kTopK;
  round.experts_per_rank = kExperts / kRanks;
  round.channels = 32;
  round.type = Type::kBFloat16;
  round.unsound_rank = -1;
  return round;
}

// Distinct experts for every token, all equally likely.
void RouteUniformly(const Case& round, int rank, Inputs& in) {
  uint64_t state = 12345 + static_cast<uint64_t>(rank);
  std::vector<int> experts(kExperts);
  for (int e = 0; e < kExperts; ++e) experts[e] = e;
  for (int t = 0; t < round.tokens; ++t) {
    for (int k = 0; k < kTopK; ++k) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(experts[k], experts[k + static_cast<int>((state >> 33) % (kExperts - k))]);
      in.topk_idx[static_cast<size_t>(t) * kTopK + k] = experts[k];
    }
  }
}

// Bytes of rows that each rank gets from the other; the smaller of the two.
double CrossingBytes(const Case& round, const std::vector<Inputs>& inputs) {
  double least = 0;
  for (int r = 0; r < kRanks; ++r) {
    const Plan plan = PlanOf(round, inputs[r]);
    int64_t rows = 0;
    for (int t = 0; t < round.tokens; ++t) rows += plan.in_rank[t * kRanks + (1 - r)];
    const double bytes = static_cast<double>(rows) * round.row_bytes;
    least = r == 0 ? bytes : std::min(least, bytes);
  }
  return least;
}

float Quartile(std::vector<float> values, int which) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * which / 4];
}

void PrintRow(const Case& round, const std::string& name, int blocks,
              const std::vector<float>& times, double bytes) {
  std::printf(
      "{\"operation\": \"%s\", \"tokens\": %d, \"hidden\": %d, \"top_k\": %d, \"experts\": %d, "
      "\"blocks\": %d, \"median_us\": %.2f, \"lower_quartile_us\": %.2f, "
      "\"upper_quartile_us\": %.2f, \"samples\": %zu, \"bytes_per_direction\": %.0f, "
      "\"GB_s\": %.1f}\n",
      name.c_str(), round.tokens, kHidden, kTopK, kExperts, blocks, Median(times),
      Quartile(times, 1), Quartile(times, 3), times.size(), bytes, bytes / Median(times) / 1000);
}

void BenchTokens(Ranks& ranks, int tokens) {
  const Case round = BenchCase(tokens);
  std::vector<Inputs> inputs(kRanks);
  OnAllRanks(ranks, [&](GpuRank& rank, int r) {
    inputs[r] = DrawInputs(round, r);
    RouteUniformly(round, r, inputs[r]);
    Check(rank.Upload(round, inputs[r]));
    Check(rank.Wait(std::chrono::seconds(30)));
  });
  const double bytes = CrossingBytes(round, inputs);
  const auto copy = [&](GpuRank& rank) {
    GpuRank& peer = &rank == ranks[0].get() ? *ranks[1] : *ranks[0];
    Check(cudaMemcpyPeerAsync(peer.recv_x(), peer.device(), rank.x(), rank.device(),
                              static_cast<size_t>(bytes), rank.stream()),
          "cudaMemcpyPeerAsync");
  };
  std::map<std::pair<std::string, int>, std::vector<float>> times;
  const auto run = [&](const std::string& name, int blocks, const Operation& operation) {
    const auto measured = Time(ranks, operation);
    auto& all = times[{name, blocks}];
    all.insert(all.end(), measured.begin(), measured.end());
  };
  // In turn: clocks and temperature change with time.
  for (int pass = 0; pass < kPasses; ++pass) {
    run("peer copy", 0, copy);
    for (const int blocks : {32, 64, 80, 96}) {
      run("dispatch", blocks, [&](GpuRank& rank) { Check(rank.Dispatch(round, blocks)); });
      run("combine", blocks, [&](GpuRank& rank) { Check(rank.Combine(round, blocks)); });
      run("cached dispatch", blocks,
          [&](GpuRank& rank) { Check(rank.CachedDispatch(round, blocks)); });
    }
  }
  for (const auto& [key, values] : times) PrintRow(round, key.first, key.second, values, bytes);
  std::fflush(stdout);
}

void BenchMeeting(Ranks& ranks) {
  constexpr int kMeetings = 500;
  const Case round = BenchCase(64);
  const auto start = std::chrono::steady_clock::now();
  OnAllRanks(ranks, [&](GpuRank& rank, int) {
    for (int i = 0; i < kMeetings; ++i) Check(rank.MeetOnly(round));
  });
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  std::printf(
      "{\"operation\": \"meeting of two host threads\", \"mean_us\": %.2f, \"samples\": %d}\n",
      took.count() / kMeetings, kMeetings);
}

}  // namespace

int RunBench() {
  int devices = 0;
  Check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (devices < kRanks) {
    std::fprintf(stderr, "expected %d GPUs, found %d\n", kRanks, devices);
    return 1;
  }
  auto made = gpu::LocalExchange::Make({0, 1}, LoadKernels);
  if (auto* failure = std::get_if<Failure>(&made)) Check(failure->text);
  const size_t most_bytes = size_t{8192} * kRanks * kHidden * 2;
  Ranks ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(std::make_unique<GpuRank>(std::get<std::shared_ptr<gpu::LocalExchange>>(made),
                                              r, most_bytes));
  }
  BenchMeeting(ranks);
  // Few tokens show what an operation costs besides the rows.
  for (const int tokens : {64, 4096, 8192}) BenchTokens(ranks, tokens);
  return 0;
}

}  // namespace moeprof::stress
