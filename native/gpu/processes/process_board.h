// Question: how do the processes of an EP group agree, call by call, on what they are about to do?
//
// Each call of an operation is a round. In a round every rank posts one card into shared memory and
// waits until it sees the cards of all ranks:
//
//   shared memory   failure: first reason only, for all ranks and all later rounds
//                   rank 0:  posted = 7 | card of round 6 | card of round 7
//                   rank 1:  posted = 6 | card of round 6 | card of round 5   <- still expected
//
// Two cards per rank are enough: a rank posts round n + 1 only when all have posted round n, which
// each does only after it has read all cards of round n - 1; so nobody still reads the card that is
// overwritten.
//
// A rank that cannot take part posts a card that says why, and cards may contradict each other: the
// round then fails in all ranks alike, and the next can succeed. Where a rank does not come, or is
// gone, whoever notices writes the reason for the others, who then fail at once with it; such a
// group stays failed, since its ranks are no longer at the same round.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "common/failure.h"
#include "gpu/processes/process_link.h"

namespace moeprof::gpu {

// What a rank shows the others in a round.
struct BoardCard {
  std::string op;                  // up to 63 bytes
  std::vector<int64_t> signature;  // sizes that must be the same in every rank; up to 16
  std::string payload;             // for the reader; up to kMaxPayloadBytes
};

class ProcessBoard {
 public:
  static constexpr size_t kMaxPayloadBytes = 1024;
  static constexpr size_t kMaxSignature = 16;

  // Bytes that a link of `ranks` processes must share.
  static size_t SharedBytes(int ranks);

  // The link must share SharedBytes(link->ranks()) bytes.
  explicit ProcessBoard(std::unique_ptr<ProcessLink> link);

  // Leaves, if this rank has not left before.
  ~ProcessBoard();

  // Tells the others that this rank leaves on purpose.
  void Leave();

  const ProcessLink& link() const { return *link_; }

  // One round: the payloads of all ranks in rank order, or why there are none.
  std::variant<std::vector<std::string>, Failure> Meet(const BoardCard& card,
                                                       std::chrono::milliseconds timeout);

  // This rank cannot take part in its next round, of `op`: the round fails for all. Does not wait
  // for the others, except those that are a round behind. Returns what the others get to see.
  Failure Refuse(const std::string& op, const std::string& reason,
                 std::chrono::milliseconds timeout);

  // Fails the group, unless it has failed before; returns the reason that counts.
  Failure Fail(const Failure& failure);

  // Why the group has failed, if it has.
  Outcome Failed() const;

  // Whether the process of a rank has ended, or has left.
  bool IsGone(int rank) const;

  // The first rank that is gone, or -1.
  int FindGone() const;
  std::string GoneText(int rank) const;

  // The number of the last round that this rank took part in; the first is 1. Equal in all ranks
  // that are at the same call, and it only grows.
  uint64_t round() const { return round_; }

 private:
  struct Memory;

  Outcome Post(const BoardCard& card, const std::string& refusal,
               std::chrono::milliseconds timeout);
  Outcome AwaitRound(uint64_t round, const std::string& op, std::chrono::milliseconds timeout);
  bool IsComplete(uint64_t round) const;
  void WaitForBell(uint32_t heard);
  Failure Missing(uint64_t round, const std::string& op, std::chrono::milliseconds timeout) const;
  Outcome CheckRound(const std::string& op) const;

  const std::unique_ptr<ProcessLink> link_;
  Memory* const memory_;
  std::mutex mutex_;  // one round at a time
  uint64_t round_ = 0;
};

}  // namespace moeprof::gpu
