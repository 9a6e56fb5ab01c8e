// Question: do processes of an EP group meet, agree and fail as they should, without any GPU?
//
// Each scenario forks real processes, lets them meet, and checks what each of them saw. Run it with
// the name of a scenario, or without for all of them: it prints "ok", or what went wrong and exits
// with 1. Nothing waits longer than a minute.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "gpu/processes/process_board.h"
#include "gpu/processes/process_link.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Met = std::variant<std::vector<std::string>, Failure>;

constexpr milliseconds kLong{60000};

void Expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed in process %d: %s\n", static_cast<int>(getpid()), what.c_str());
  std::_Exit(1);
}

void ExpectText(const Failure& failure, Fault fault, const std::string& part) {
  Expect(failure.fault == fault && failure.text.find(part) != std::string::npos,
         "expected \"" + part + "\", found \"" + failure.text + "\"");
}

std::string Token(int scenario) {
  return "stress-" + std::to_string(getpid()) + "-" + std::to_string(scenario);
}

std::unique_ptr<ProcessBoard> Join(const std::string& token, int rank, int ranks) {
  auto link = ProcessLink::Connect(token, rank, ranks, ProcessBoard::SharedBytes(ranks), kLong);
  if (auto* failure = std::get_if<Failure>(&link)) Expect(false, failure->text);
  return std::make_unique<ProcessBoard>(std::move(std::get<std::unique_ptr<ProcessLink>>(link)));
}

const Failure& FailureOf(const Met& met) {
  Expect(std::holds_alternative<Failure>(met), "expected the round to fail");
  return std::get<Failure>(met);
}

// Runs body(rank) in a process per rank; the processes that end by `killed` signals are listed.
void InProcesses(int ranks, const std::function<void(int)>& body,
                 const std::vector<int>& killed = {}) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      body(rank);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool all_good = true;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    bool may_die = false;
    for (int one : killed) may_die = may_die || one == rank;
    const bool good = may_die ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                              : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good) std::fprintf(stderr, "rank %d ended with status %d\n", rank, status);
    all_good = all_good && good;
  }
  if (!all_good) std::exit(1);
}

std::string Payload(int rank, int64_t round) {
  return std::string(static_cast<size_t>((round * 7 + rank) % 900), 'a') + std::to_string(rank) +
         ":" + std::to_string(round);
}

void ManyRounds(ProcessBoard& board, int64_t rounds, uint32_t seed) {
  std::mt19937 random(seed);
  const int rank = board.link().rank();
  for (int64_t round = 0; round < rounds; ++round) {
    if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    const Met met = board.Meet({"dispatch", {round, 16}, Payload(rank, round)}, kLong);
    if (auto* failure = std::get_if<Failure>(&met)) Expect(false, failure->text);
    const auto& payloads = std::get<std::vector<std::string>>(met);
    for (int peer = 0; peer < board.link().ranks(); ++peer) {
      Expect(payloads[static_cast<size_t>(peer)] == Payload(peer, round),
             "round " + std::to_string(round) + ": the card of rank " + std::to_string(peer));
    }
  }
}

void Rounds() {
  for (int ranks : {2, 3, 8}) {
    const std::string token = Token(ranks);
    InProcesses(ranks, [&](int rank) {
      auto board = Join(token, rank, ranks);
      ManyRounds(*board, ranks == 8 ? 1000 : 3000, static_cast<uint32_t>(rank));
    });
  }
}

// Processes (0, 1), (2, 3) are groups, and (0, 2), (1, 3): each is in two at once.
void TwoGroups() {
  const std::string token = Token(0);
  InProcesses(4, [&](int process) {
    auto row = Join(token + "-r" + std::to_string(process / 2), process % 2, 2);
    auto column = Join(token + "-c" + std::to_string(process % 2), process / 2, 2);
    for (uint32_t i = 0; i < 20; ++i) {
      ManyRounds(*row, 50, i);
      ManyRounds(*column, 50, i);
    }
  });
}

void OneNeverJoins() {
  const std::string token = Token(0);
  for (int absent : {0, 1, 2}) {
    InProcesses(3, [&](int rank) {
      if (rank == absent) return;
      auto link = ProcessLink::Connect(token, rank, 3, 4096, milliseconds(400));
      Expect(std::holds_alternative<Failure>(link), "expected no link");
      ExpectText(std::get<Failure>(link), Fault::kDeadlineExceeded,
                 "EP rank " + std::to_string(absent));
      ExpectText(std::get<Failure>(link), Fault::kDeadlineExceeded,
                 "did not join within 0.4 s: expected 3 ranks, got ");
    });
  }
}

void OneNeverComes() {
  const std::string token = Token(0);
  InProcesses(3, [&](int rank) {
    auto board = Join(token, rank, 3);
    ManyRounds(*board, 5, 0);
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(1500));
      // It comes after all, and learns why nobody waits any more.
      ExpectText(FailureOf(board->Meet({"dispatch", {1}, ""}, milliseconds(300))),
                 Fault::kDeadlineExceeded, "call reset_runtime() and setup() again");
      return;
    }
    const auto start = Clock::now();
    const Met met = board->Meet({"dispatch", {1}, ""}, milliseconds(300));
    Expect(Clock::now() - start < milliseconds(1000), "the wait is bounded");
    ExpectText(FailureOf(met), Fault::kDeadlineExceeded, "dispatch: EP rank 1 (process ");
    ExpectText(FailureOf(met), Fault::kDeadlineExceeded,
               "did not arrive within 0.3 s: expected 3 ranks, got 2: 0 (process ");
    std::this_thread::sleep_for(milliseconds(1500));
  });
}

void OneIsKilled() {
  const std::string token = Token(0);
  InProcesses(3,
              [&](int rank) {
                auto board = Join(token, rank, 3);
                ManyRounds(*board, 100, 0);
                if (rank == 2) kill(getpid(), SIGKILL);
                const auto start = Clock::now();
                const Met met = board->Meet({"combine", {1}, ""}, kLong);
                Expect(Clock::now() - start < milliseconds(5000), "a death is noticed at once");
                ExpectText(FailureOf(met), Fault::kAborted, "combine: EP rank 2 (process ");
                ExpectText(FailureOf(met), Fault::kAborted,
                           ") has ended before round 101 of its EP group: expected 3 ranks");
              },
              {2});
}

// A child that outlives its parent holds the parent's socket open.
void OneIsKilledButItsChildLives() {
  const std::string token = Token(0);
  InProcesses(2,
              [&](int rank) {
                auto board = Join(token, rank, 2);
                ManyRounds(*board, 10, 0);
                if (rank == 1) {
                  if (fork() == 0) {
                    std::this_thread::sleep_for(milliseconds(4000));
                    std::_Exit(0);
                  }
                  kill(getpid(), SIGKILL);
                }
                const Met met = board->Meet({"combine", {1}, ""}, kLong);
                ExpectText(FailureOf(met), Fault::kAborted, ") has ended before round 11");
              },
              {1});
}

void OneLeaves() {
  const std::string token = Token(0);
  InProcesses(2, [&](int rank) {
    auto board = Join(token, rank, 2);
    ManyRounds(*board, 10, 0);
    if (rank == 1) {
      board.reset();
      std::this_thread::sleep_for(milliseconds(500));
      return;
    }
    const Met met = board->Meet({"combine", {1}, ""}, kLong);
    ExpectText(FailureOf(met), Fault::kAborted, ") has left its EP group (reset_runtime, or");
  });
}

// A round that fails because of what the cards say fails in all ranks; the next one succeeds.
void SizesDiffer() {
  const std::string token = Token(0);
  InProcesses(3, [&](int rank) {
    auto board = Join(token, rank, 3);
    for (int i = 0; i < 50; ++i) {
      const Met met = board->Meet({"dispatch", {4096, rank == 1 ? 7168 : 2048}, ""}, kLong);
      ExpectText(FailureOf(met), Fault::kInvalidArgument, "dispatch: EP rank 1 (process ");
      ExpectText(FailureOf(met), Fault::kInvalidArgument,
                 "came with sizes [4096, 7168], EP rank 0 (process ");
      ManyRounds(*board, 3, static_cast<uint32_t>(i));
    }
  });
}

void OperationsDiffer() {
  const std::string token = Token(0);
  InProcesses(2, [&](int rank) {
    auto board = Join(token, rank, 2);
    const Met met = board->Meet({rank == 1 ? "combine" : "dispatch", {1}, ""}, kLong);
    ExpectText(FailureOf(met), Fault::kInvalidArgument, ") came with combine, EP rank 0 (process ");
    ManyRounds(*board, 3, 0);
  });
}

// Several refusals in a row, of one rank and of more, at different times.
void OneRefuses() {
  const std::string token = Token(0);
  InProcesses(3, [&](int rank) {
    auto board = Join(token, rank, 3);
    std::mt19937 random(static_cast<uint32_t>(rank));
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      const int refusing = i % 3;
      if (rank == refusing || (i % 5 == 0 && rank == 2)) {
        board->Refuse("dispatch", "bad argument " + std::to_string(i), kLong);
      } else {
        const Met met = board->Meet({"dispatch", {1}, ""}, kLong);
        ExpectText(FailureOf(met), Fault::kAborted,
                   "dispatch: EP rank " + std::to_string(refusing) + " (process ");
        ExpectText(FailureOf(met), Fault::kAborted, "refused: bad argument " + std::to_string(i));
      }
      if (i % 4 == 0) ManyRounds(*board, 2, 0);
      Expect(!board->Failed(), "the group can go on");
    }
  });
}

// Rank r sends every peer a file that holds r, 200 times, before the peer looks.
void Descriptors() {
  const std::string token = Token(0);
  InProcesses(3, [&](int rank) {
    auto board = Join(token, rank, 3);
    const ProcessLink& link = board->link();
    const Deadline deadline = Clock::now() + kLong;
    for (int i = 0; i < 200; ++i) {
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        const int file = memfd_create("stress", MFD_CLOEXEC);
        const std::string text = std::to_string(rank) + "/" + std::to_string(i);
        Expect(write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "write");
        Expect(!link.Send(peer, text, file, deadline), "send");
        close(file);
      }
      if (i % 20 != 19) continue;
      ManyRounds(*board, 1, 0);
      for (int peer = 0; peer < 3; ++peer) {
        for (int j = i - 19; peer != rank && j <= i; ++j) {
          auto received = link.Receive(peer, deadline);
          Expect(std::holds_alternative<LinkMessage>(received), "receive");
          const LinkMessage& message = std::get<LinkMessage>(received);
          const std::string text = std::to_string(peer) + "/" + std::to_string(j);
          char content[64] = {};
          Expect(message.bytes == text, "messages keep their order");
          Expect(pread(message.descriptor, content, sizeof(content), 0) ==
                         static_cast<ssize_t>(text.size()) &&
                     text == content,
                 "the file is the sender's");
          close(message.descriptor);
        }
      }
    }
  });
}

// A timing, not a check: microseconds per round.
void Bench() {
  for (int ranks : {2, 8}) {
    const std::string token = Token(ranks);
    InProcesses(ranks, [&](int rank) {
      auto board = Join(token, rank, ranks);
      constexpr int64_t kRounds = 2000;
      const auto start = Clock::now();
      for (int64_t i = 0; i < kRounds; ++i) board->Meet({"dispatch", {1}, "payload"}, kLong);
      const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
      if (rank == 0) {
        std::printf("%d ranks: %.1f us per round\n", ranks, taken.count() / kRounds);
        std::fflush(stdout);
      }
    });
  }
}

}  // namespace
}  // namespace moeprof::gpu

int main(int argc, char** argv) {
  using namespace moeprof::gpu;  // NOLINT: the scenarios of this program
  const std::vector<std::pair<std::string, void (*)()>> scenarios = {
      {"rounds", Rounds},
      {"two-groups", TwoGroups},
      {"one-never-joins", OneNeverJoins},
      {"one-never-comes", OneNeverComes},
      {"one-is-killed", OneIsKilled},
      {"one-is-killed-but-its-child-lives", OneIsKilledButItsChildLives},
      {"one-leaves", OneLeaves},
      {"sizes-differ", SizesDiffer},
      {"operations-differ", OperationsDiffer},
      {"one-refuses", OneRefuses},
      {"descriptors", Descriptors},
      {"bench", Bench}};
  for (const auto& [name, run] : scenarios) {
    if (argc == 1 && run != Bench) {
      run();
      std::printf("%s: ok\n", name.c_str());
      std::fflush(stdout);  // children inherit what is not written yet
    }
    if (argc == 2 && name == argv[1]) {
      run();
      std::puts("ok");
      return 0;
    }
  }
  if (argc == 1) return 0;
  std::fprintf(stderr, "expected one of:");
  for (const auto& [name, run] : scenarios) std::fprintf(stderr, " %s", name.c_str());
  std::fprintf(stderr, "\n");
  return 2;
}
