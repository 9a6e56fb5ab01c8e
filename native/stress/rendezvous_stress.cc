// Question: is the rendezvous free of data races and hangs under threads alone, without XLA?
//
// Ranks as threads meet for thousands of rounds at several sites in different orders; some wait
// past the patience, some refuse, some never come. Build with -DMOEPROF_STRESS=ON (a thread
// sanitizer build) and run it: it prints "ok", or what went wrong and exits with 1.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu/exchange/rendezvous.h"

namespace moeprof {
namespace {

constexpr int64_t kRanks = 8;

// What a rank publishes: its number, and where the sum over all ranks goes.
struct Share {
  int64_t value;
  int64_t* sum;
};

Outcome SumShares(const Published& published, int64_t rank) {
  int64_t total = 0;
  for (const auto& share : published) total += static_cast<const Share*>(share.get())->value;
  *static_cast<const Share*>(published[rank].get())->sum = total;
  return std::nullopt;
}

Attendance Rank(int64_t run, int64_t site, int64_t rank, int64_t timeout_ms) {
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < kRanks; ++i) devices.push_back(i);
  return {{run, site, 0}, rank, devices, "stress", std::chrono::milliseconds(timeout_ms)};
}

// Attends and waits for the outcome, wherever it is delivered.
Outcome AttendAndWait(const Attendance& who, int64_t value, int64_t* sum) {
  struct Delivery {
    std::mutex mutex;
    std::condition_variable arrived;
    bool is_there = false;
    Outcome outcome;
  };
  auto delivery = std::make_shared<Delivery>();
  Rendezvous::Instance().Attend(who, {1}, std::make_shared<Share>(Share{value, sum}), SumShares,
                                [delivery](const Outcome& outcome) {
                                  std::lock_guard<std::mutex> lock(delivery->mutex);
                                  delivery->outcome = outcome;
                                  delivery->is_there = true;
                                  delivery->arrived.notify_one();
                                });
  std::unique_lock<std::mutex> lock(delivery->mutex);
  delivery->arrived.wait(lock, [&] { return delivery->is_there; });
  return delivery->outcome;
}

template <typename Body>
void OnAllRanks(const Body& body) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (auto& thread : threads) thread.join();
}

void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

void RoundsAtOneSite() {
  OnAllRanks([](int64_t rank) {
    for (int64_t round = 0; round < 2000; ++round) {
      int64_t sum = 0;
      const Outcome outcome = AttendAndWait(Rank(0, 0, rank, 60000), rank + round, &sum);
      Expect(!outcome && sum == 28 + kRanks * round,
             "every round sums the shares of its own round");
    }
  });
}

// Two threads per rank, each at its own sites: the second of a device may not block.
void SitesInDifferentOrder() {
  for (int64_t run = 1; run < 200; ++run) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < 2 * kRanks; ++i) {
      threads.emplace_back([i, run] {
        int64_t sum = 0;
        const Outcome outcome = AttendAndWait(Rank(run, i / kRanks, i % kRanks, 60000), 1, &sum);
        Expect(!outcome && sum == kRanks, "sites do not mix");
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

void OneRankComesAfterThePatience() {
  OnAllRanks([](int64_t rank) {
    if (rank == 3) std::this_thread::sleep_for(2 * Rendezvous::kPatience);
    int64_t sum = 0;
    Expect(!AttendAndWait(Rank(1000, 0, rank, 60000), 1, &sum) && sum == kRanks, "late rank");
  });
}

void OneRankRefuses() {
  for (int64_t run = 2000; run < 2100; ++run) {
    OnAllRanks([run](int64_t rank) {
      if (rank == run % kRanks) {
        Rendezvous::Instance().Refuse(Rank(run, 0, rank, 60000), "bad argument");
        return;
      }
      int64_t sum = 0;
      const Outcome outcome = AttendAndWait(Rank(run, 0, rank, 60000), 1, &sum);
      Expect(outcome && outcome->text.find("bad argument") != std::string::npos, "refusal");
    });
  }
}

void OneRankNeverComes() {
  OnAllRanks([](int64_t rank) {
    if (rank == 5) return;
    int64_t sum = 0;
    const Outcome outcome = AttendAndWait(Rank(3000, 0, rank, 300), 1, &sum);
    Expect(outcome && outcome->text.find("EP rank 5 (device 5) did not arrive within 0.3 s") !=
                          std::string::npos,
           "missing rank is named");
  });
}

}  // namespace
}  // namespace moeprof

int main() {
  moeprof::RoundsAtOneSite();
  moeprof::SitesInDifferentOrder();
  moeprof::OneRankComesAfterThePatience();
  moeprof::OneRankRefuses();
  moeprof::OneRankNeverComes();
  std::puts("ok");
}
