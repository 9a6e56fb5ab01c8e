#include "gpu/processes/process_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "common/seconds_text.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{20};            // how often a wait looks at more than its own event
constexpr uint32_t kHelloMagic = 0x6d6f6531;  // "moe1": the layout of Hello and of the memory

struct Hello {
  uint32_t magic;
  int32_t rank;
  int32_t ranks;
};

Failure Broken(const std::string& what) {
  return {Fault::kInternal, what + ": " + std::strerror(errno)};
}

milliseconds Left(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, milliseconds(0));
}

// Fills the address of an abstract name; its length, which counts no terminating zero.
socklen_t AbstractAddress(const std::string& token, int rank, sockaddr_un& address) {
  const std::string name = "moeprof-" + token + "-" + std::to_string(rank);
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

int NewSocket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

// Waits for `events`; false at the deadline.
bool PollFor(int descriptor, int16_t events, Deadline deadline) {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    const auto slice = std::min(Left(deadline), kSlice);
    const int ready = poll(&entry, 1, static_cast<int>(slice.count()));
    if (ready > 0) return true;
    if (ready == 0 && Left(deadline) == milliseconds(0)) return false;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows reports it
  }
}

bool SendNow(int socket, const std::string& bytes, int descriptor) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

// The bytes received; 0 where the other end is closed; -1 with errno.
ssize_t ReceiveNow(int socket, LinkMessage& received) {
  received.bytes.resize(ProcessLink::kMaxMessageBytes);
  iovec part{received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) return size;
  received.bytes.resize(static_cast<size_t>(size));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&received.descriptor, CMSG_DATA(header), sizeof(int));
    }
  }
  return size;
}

// Whether a process of our namespace runs: neither gone, nor dead and only not yet waited for.
bool IsRunning(pid_t process) {
  if (kill(process, 0) != 0 && errno == ESRCH) return false;
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;  // hidden: we cannot know
  char text[512];
  const ssize_t size = read(file, text, sizeof(text));
  close(file);
  // "4711 (name, which may hold anything) S ...": the state follows the last parenthesis.
  const std::string stat(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  const size_t end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos || end_of_name + 2 >= stat.size()) return true;
  return stat[end_of_name + 2] != 'Z' && stat[end_of_name + 2] != 'X';
}

void* MapShared(int descriptor, size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

ProcessLink::ProcessLink(int rank, int ranks) : rank_(rank), peers_(static_cast<size_t>(ranks)) {
  peers_[static_cast<size_t>(rank)].process = getpid();
}

ProcessLink::~ProcessLink() {
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) close(peer.socket);
  }
  if (shared_ != nullptr) munmap(shared_, shared_bytes_);
}

ProcessLink::Connected ProcessLink::Connect(const std::string& token, int rank, int ranks,
                                            size_t shared_bytes, milliseconds timeout) {
  constexpr size_t kMaxTokenBytes = 64;  // with the rest of the name, far below sun_path's 108
  if (ranks < 2 || rank < 0 || rank >= ranks || token.empty() || token.size() > kMaxTokenBytes) {
    return Failure{Fault::kInvalidArgument,
                   "EP group of processes: expected a token of 1 to 64 bytes and a rank below the "
                   "number of ranks, found " +
                       std::to_string(token.size()) + " bytes, rank " + std::to_string(rank) +
                       " of " + std::to_string(ranks)};
  }
  std::unique_ptr<ProcessLink> link(new ProcessLink(rank, ranks));
  if (auto failure = link->Open(token, shared_bytes, timeout)) return *failure;
  return link;
}

Outcome ProcessLink::Open(const std::string& token, size_t shared_bytes, milliseconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  const int listener = NewSocket();
  if (listener < 0) return Broken("EP group of processes: socket");
  sockaddr_un address;
  const socklen_t length = AbstractAddress(token, rank_, address);
  Outcome outcome;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, ranks()) != 0) {
    outcome = Broken("EP group of processes: rank " + std::to_string(rank_) + " cannot listen");
  }
  if (!outcome) outcome = CallLowerRanks(token, deadline);
  if (!outcome) outcome = TakeCalls(listener, deadline);
  close(listener);
  if (!outcome) outcome = ShareMemory(shared_bytes, deadline);
  if (outcome && outcome->fault == Fault::kDeadlineExceeded) outcome->text = Missing(timeout);
  return outcome;
}

Outcome ProcessLink::CallLowerRanks(const std::string& token, Deadline deadline) {
  for (int peer = 0; peer < rank_; ++peer) {
    sockaddr_un address;
    const socklen_t length = AbstractAddress(token, peer, address);
    for (;;) {
      const int socket = NewSocket();
      if (socket < 0) return Broken("EP group of processes: socket");
      if (connect(socket, reinterpret_cast<sockaddr*>(&address), length) == 0) {
        if (auto failure = Adopt(peer, socket)) return failure;
        break;
      }
      const bool is_not_there_yet = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
      if (!is_not_there_yet) {
        const Failure failure = Broken("EP rank " + std::to_string(peer) + " cannot be reached");
        close(socket);
        return failure;
      }
      close(socket);
      if (Left(deadline) == milliseconds(0)) return Failure{Fault::kDeadlineExceeded, ""};
      std::this_thread::sleep_for(milliseconds(2));
    }
    const Hello hello{kHelloMagic, rank_, ranks()};
    const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
    if (auto failure = Send(peer, bytes, -1, deadline)) return failure;
  }
  return std::nullopt;
}

Outcome ProcessLink::TakeCalls(int listener, Deadline deadline) {
  for (int expected = ranks() - 1 - rank_; expected > 0; --expected) {
    if (!PollFor(listener, POLLIN, deadline)) return Failure{Fault::kDeadlineExceeded, ""};
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return Broken("EP group of processes: accept");
    if (auto failure = TakeCall(socket, deadline)) return failure;
  }
  return std::nullopt;
}

Outcome ProcessLink::TakeCall(int socket, Deadline deadline) {
  LinkMessage message;
  const bool came = PollFor(socket, POLLIN, deadline);
  Hello hello{};
  if (came && ReceiveNow(socket, message) == static_cast<ssize_t>(sizeof(hello))) {
    std::memcpy(&hello, message.bytes.data(), sizeof(hello));
  }
  const bool is_wanted = hello.magic == kHelloMagic && hello.ranks == ranks() &&
                         hello.rank > rank_ && hello.rank < ranks() &&
                         peers_[static_cast<size_t>(hello.rank)].socket < 0;
  if (is_wanted) return Adopt(hello.rank, socket);
  close(socket);
  if (!came) return Failure{Fault::kDeadlineExceeded, ""};
  return Failure{
      Fault::kInvalidArgument,
      "EP group of processes: rank " + std::to_string(rank_) + " of " + std::to_string(ranks()) +
          " was called by rank " + std::to_string(hello.rank) + " of " +
          std::to_string(hello.ranks) +
          "; all processes must call setup() with the same EP group and the same moeprof"};
}

// Takes a connected socket for a rank's, where its process belongs to the same user.
Outcome ProcessLink::Adopt(int rank, int socket) {
  peers_[static_cast<size_t>(rank)].socket = socket;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Broken("EP group of processes: SO_PEERCRED");
  }
  if (credentials.uid != geteuid()) {
    return Failure{Fault::kInvalidArgument,
                   "EP group of processes: EP rank " + std::to_string(rank) + " runs as user " +
                       std::to_string(credentials.uid) + ", rank " + std::to_string(rank_) +
                       " as user " + std::to_string(geteuid())};
  }
  peers_[static_cast<size_t>(rank)].process = credentials.pid;
  return std::nullopt;
}

Outcome ProcessLink::ShareMemory(size_t bytes, Deadline deadline) {
  int descriptor = -1;
  if (rank_ == 0) {
    descriptor = memfd_create("moeprof-ep-group", MFD_CLOEXEC);
    if (descriptor < 0) return Broken("EP group of processes: memfd_create");
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
      const Failure failure = Broken("EP group of processes: ftruncate");
      close(descriptor);
      return failure;
    }
    for (int peer = 1; peer < ranks(); ++peer) {
      if (auto failure = Send(peer, "memory", descriptor, deadline)) {
        close(descriptor);
        return failure;
      }
    }
  } else {
    auto received = Receive(0, deadline);
    if (auto* failure = std::get_if<Failure>(&received)) return *failure;
    descriptor = std::get<LinkMessage>(received).descriptor;
    if (descriptor < 0) {
      return Failure{Fault::kInternal, "EP group of processes: rank 0 sent no shared memory"};
    }
  }
  shared_ = MapShared(descriptor, bytes);
  const Failure failure = Broken("EP group of processes: mmap");
  close(descriptor);
  if (shared_ == nullptr) return failure;
  shared_bytes_ = bytes;
  return std::nullopt;
}

std::string ProcessLink::NameOf(int rank) const {
  const pid_t process = peers_[static_cast<size_t>(rank)].process;
  return std::to_string(rank) +
         (process > 0 ? " (process " + std::to_string(process) + ")" : std::string());
}

std::string ProcessLink::Missing(milliseconds timeout) const {
  std::string missing, present;
  int arrived = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool is_here = rank == rank_ || peers_[static_cast<size_t>(rank)].socket >= 0;
    std::string& list = is_here ? present : missing;
    list += (list.empty() ? "" : ", ") + NameOf(rank);
    arrived += is_here;
  }
  return "EP rank " + (missing.empty() ? NameOf(0) : missing) + " did not join within " +
         SecondsText(timeout) + ": expected " + std::to_string(ranks()) + " ranks, got " +
         std::to_string(arrived) + ": " + present +
         ". All processes of a group must call setup() on one host and in one network namespace";
}

bool ProcessLink::IsAlive(int rank) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (rank == rank_) return true;
  pollfd entry{peer.socket, POLLRDHUP, 0};
  if (poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0) {
    return false;
  }
  // A child that the process forked may hold the socket open past the end of the process.
  return peer.process <= 0 || IsRunning(peer.process);
}

Outcome ProcessLink::Send(int rank, const std::string& bytes, int descriptor,
                          Deadline deadline) const {
  const int socket = peers_[static_cast<size_t>(rank)].socket;
  while (!SendNow(socket, bytes, descriptor)) {
    if (errno == EPIPE || errno == ECONNRESET) {
      return Failure{Fault::kAborted, "EP rank " + NameOf(rank) + " has ended"};
    }
    const bool is_full = errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
    if (!is_full) return Broken("EP rank " + NameOf(rank) + ": sendmsg");
    if (!PollFor(socket, POLLOUT, deadline)) {
      return Failure{Fault::kDeadlineExceeded, "EP rank " + NameOf(rank) + " takes no messages"};
    }
  }
  return std::nullopt;
}

std::variant<LinkMessage, Failure> ProcessLink::Receive(int rank, Deadline deadline) const {
  const int socket = peers_[static_cast<size_t>(rank)].socket;
  for (;;) {
    if (!PollFor(socket, POLLIN, deadline)) {
      return Failure{Fault::kDeadlineExceeded, "EP rank " + NameOf(rank) + " sent nothing"};
    }
    LinkMessage message;
    const ssize_t size = ReceiveNow(socket, message);
    if (size > 0) return message;
    if (size == 0 || errno == ECONNRESET) {
      return Failure{Fault::kAborted, "EP rank " + NameOf(rank) + " has ended"};
    }
    if (errno != EAGAIN && errno != EINTR) {
      return Broken("EP rank " + NameOf(rank) + ": recvmsg");
    }
  }
}

}  // namespace moeprof::gpu
