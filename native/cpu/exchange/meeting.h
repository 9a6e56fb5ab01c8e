// Question: who has come to one meeting, is it complete, and which pieces of its work are done?
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cpu/exchange/rendezvous.h"

namespace moeprof {

using Clock = std::chrono::steady_clock;

class Meeting {
 public:
  explicit Meeting(const Attendance& first);

  // Takes note of a rank. True once nobody is missing any more, or a failed meeting has been seen
  // by all: nobody will look for this meeting again.
  bool Add(const Attendance& who, std::vector<int64_t> signature,
           std::shared_ptr<const void> published, Piece piece);

  // As Add for a rank that refuses: the meeting fails.
  bool AddRefusal(const Attendance& who, const std::string& reason);

  // Waits until all have come and all pieces are done, working on pieces meanwhile, or until the
  // meeting fails. Nothing where ranks are still missing at `patience_end`; at `deadline` that is a
  // failure that names them.
  std::optional<Outcome> Wait(const Attendance& who, Clock::time_point patience_end,
                              Clock::time_point deadline);

  void Abort(const std::string& reason);
  bool has_failed();

 private:
  enum class State { kGathering, kWorking, kFailed };

  bool MarkArrived(int64_t rank);
  void Fail(Fault fault, std::string text);
  void Work(std::unique_lock<std::mutex>& lock, int64_t own_rank);
  void RunPiece(std::unique_lock<std::mutex>& lock, int64_t rank);
  std::string MissingRanks(std::chrono::milliseconds timeout) const;

  const std::vector<int64_t> devices_;
  const char* const op_;

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kGathering;
  std::vector<bool> has_arrived_;
  std::vector<bool> has_begun_;
  int64_t arrived_ = 0;
  int64_t finished_ = 0;
  std::vector<int64_t> signature_;
  Published published_;
  Piece piece_ = nullptr;
  Outcome outcome_;
};

}  // namespace moeprof
