// Question: how is work shared among threads, so that the result does not depend on their number?
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace moeprof::xspace {

// Calls run(worker, task) once for each task in [0, tasks), on up to `threads` threads; each task
// writes to a place of its own. An exception of a task ends the work and is thrown again here.
template <typename Run>
void ShareTasks(int threads, size_t tasks, const Run& run) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&](int worker) {
    try {
      for (size_t task; (task = next.fetch_add(1)) < tasks;) run(worker, task);
    } catch (...) {
      next = tasks;
      const std::lock_guard<std::mutex> lock(failure_mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  const int wanted = static_cast<int>(std::min<size_t>(std::max(threads, 1), tasks));
  helpers.reserve(static_cast<size_t>(wanted));  // growing later could throw while threads run
  try {
    for (int worker = 1; worker < wanted; ++worker) helpers.emplace_back(work, worker);
  } catch (const std::system_error&) {
    // No more threads to be had: those that run, and this one, do the work.
  }
  work(0);
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace moeprof::xspace
