// Question: how do the processes of an EP group find each other, and how does one notice a death?
//
// Every pair of processes keeps one Unix socket, and all share one piece of memory:
//
//   rank 0 ──────── rank 1      sockets: file descriptors travel here, and the kernel closes them
//      ╲    ╲     ╱    ╱                 when a process ends, however it ends
//        ╲     ╳     ╱          memory:  an anonymous file that rank 0 makes and sends to the
//        others
//         rank 2 ...
//
// The sockets are found by names in Linux' abstract namespace, made of a token that the processes
// agreed on; the names vanish with their sockets. So nothing is left behind in a file system, not
// even by a process that is killed. Abstract names have no permissions: both ends check that the
// other belongs to the same user.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/failure.h"

namespace moeprof::gpu {

using Deadline = std::chrono::steady_clock::time_point;

// A message, and the file descriptor that came with it or -1. The receiver owns the descriptor.
struct LinkMessage {
  std::string bytes;
  int descriptor = -1;
};

class ProcessLink {
 public:
  using Connected = std::variant<std::unique_ptr<ProcessLink>, Failure>;

  // Connects rank `rank` of `ranks` processes that have the same token, within `timeout`. All must
  // ask for the same number of bytes of shared memory, which begins as zeros.
  static Connected Connect(const std::string& token, int rank, int ranks, size_t shared_bytes,
                           std::chrono::milliseconds timeout);

  ~ProcessLink();
  ProcessLink(const ProcessLink&) = delete;
  ProcessLink& operator=(const ProcessLink&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  void* shared() const { return shared_; }

  // "1 (process 4711)".
  std::string NameOf(int rank) const;

  // Whether the process of a rank still holds its end.
  bool IsAlive(int rank) const;

  // Sends up to kMaxMessageBytes, with a descriptor where it is not -1; the caller keeps that.
  Outcome Send(int rank, const std::string& bytes, int descriptor, Deadline deadline) const;

  // The next message of a rank, in the order that it sent them.
  std::variant<LinkMessage, Failure> Receive(int rank, Deadline deadline) const;

  static constexpr size_t kMaxMessageBytes = 512;

 private:
  struct Peer {
    int socket = -1;
    pid_t process = 0;  // 0: of another process namespace
  };

  ProcessLink(int rank, int ranks);
  Outcome Open(const std::string& token, size_t shared_bytes, std::chrono::milliseconds timeout);
  Outcome CallLowerRanks(const std::string& token, Deadline deadline);
  Outcome TakeCalls(int listener, Deadline deadline);
  Outcome TakeCall(int socket, Deadline deadline);
  Outcome ShareMemory(size_t bytes, Deadline deadline);
  Outcome Adopt(int rank, int socket);
  std::string Missing(std::chrono::milliseconds timeout) const;

  const int rank_;
  std::vector<Peer> peers_;
  void* shared_ = nullptr;
  size_t shared_bytes_ = 0;
};

}  // namespace moeprof::gpu
