// Question: which EP group of processes has this process joined?
//
// setup() joins one group at most: a process has one GPU, and a GPU is in one EP group. A watcher
// looks at the group a few times a second, and where a process of it has ended, raises a word that
// waiting kernels look at: without it they would wait until their own time is over.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/processes/process_exchange.h"

namespace moeprof::gpu {

struct ProcessGroup {
  std::unique_ptr<ProcessExchange> exchange;
  std::vector<int64_t> members;  // process indices in rank order
  uint32_t* abort_host = nullptr;
  uint32_t* abort_device = nullptr;  // the same word; not 0: give up waiting

  ~ProcessGroup();
};

// The group, or null. It lives as long as somebody holds it.
std::shared_ptr<ProcessGroup> JoinedProcesses();

// The complaint where `groups`, ranks_per_group process indices each, do not have the group that
// this process has joined.
std::optional<std::string> CheckMembers(const ProcessGroup& group, const int64_t* groups,
                                        int64_t count, int64_t ranks_per_group);

}  // namespace moeprof::gpu

extern "C" {

// Joins the processes `members` (indices in rank order, `ranks` of them) that have the same token.
// Returns 0, or one more than the Fault, and then writes the reason, cut to `size` bytes with its
// terminating zero.
__attribute__((visibility("default"))) int MoeprofGpuJoinProcesses(
    const char* token, const int64_t* members, int64_t ranks, int64_t own_process, int64_t device,
    int64_t timeout_ms, char* text, int64_t size);

// Leaves the group, if there is one, once this process's kernels are done. Fails whoever waits for
// this rank, or in this process for another.
__attribute__((visibility("default"))) void MoeprofGpuLeaveProcesses();
}
