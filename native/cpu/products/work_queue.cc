#include "cpu/products/work_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace moeprof {
namespace {

// Calling threads now inside RunPieces. Each already occupies a core, so helpers beyond
// cores - callers would only make eight virtual devices fight for the same two cores.
std::atomic<int64_t> g_callers{0};

struct Caller {
  const int64_t callers = g_callers.fetch_add(1) + 1;
  ~Caller() { g_callers.fetch_sub(1); }
};

struct Queue {
  Queue(int64_t count, const std::function<void(int64_t)>* piece) : count(count), piece(piece) {}

  const int64_t count;
  const std::function<void(int64_t)>* const piece;  // valid until `done` reaches `count`
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::condition_variable all_done;
  int64_t done = 0;  // guarded by mutex

  void Drain() {
    int64_t finished = 0;
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        (*piece)(i);
      } catch (...) {
        failed = true;
      }
      ++finished;
    }
    if (finished == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    done += finished;
    if (done == count) all_done.notify_all();
  }

  void WaitForTakenPieces() {
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return done == count; });
  }
};

}  // namespace

int64_t WorkerCount(int64_t limit) {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return limit > 0 ? std::min(limit, cores) : cores;
}

bool RunPieces(xla::ffi::ThreadPool& pool, int64_t count, int64_t workers,
               const std::function<void(int64_t)>& piece) {
  if (count == 0) return true;
  auto queue = std::make_shared<Queue>(count, &piece);
  const Caller caller;
  const int64_t free_cores = std::max<int64_t>(0, WorkerCount(0) - caller.callers);
  const int64_t helpers = std::min({workers - 1, count - 1, free_cores});
  try {
    for (int64_t i = 0; i < helpers; ++i) {
      pool.Schedule([queue] { queue->Drain(); });
    }
  } catch (const std::exception&) {
    // Less help. Leaving instead would take `piece` away from the helpers that are there already.
  }
  queue->Drain();
  queue->WaitForTakenPieces();
  return !queue->failed;
}

}  // namespace moeprof
