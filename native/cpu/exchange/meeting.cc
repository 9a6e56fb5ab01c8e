#include "cpu/exchange/meeting.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "common/seconds_text.h"

namespace moeprof {
namespace {

std::string RankName(int64_t rank, const std::vector<int64_t>& devices) {
  return std::to_string(rank) + " (device " + std::to_string(devices[rank]) + ")";
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string Numbers(const std::vector<int64_t>& values) {
  std::vector<std::string> parts;
  for (int64_t value : values) parts.push_back(std::to_string(value));
  return "[" + Join(parts) + "]";
}

}  // namespace

Meeting::Meeting(const Attendance& first)
    : devices_(first.devices),
      op_(first.op),
      has_arrived_(first.devices.size()),
      has_begun_(first.devices.size()),
      published_(first.devices.size()) {}

bool Meeting::MarkArrived(int64_t rank) {
  if (!has_arrived_[rank]) ++arrived_;
  has_arrived_[rank] = true;
  return arrived_ == static_cast<int64_t>(devices_.size());
}

bool Meeting::Add(const Attendance& who, std::vector<int64_t> signature,
                  std::shared_ptr<const void> published, Piece piece) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (arrived_ == 0) {
    signature_ = signature;
    piece_ = piece;
  }
  if (state_ == State::kGathering && signature != signature_) {
    Fail(Fault::kInvalidArgument, "EP rank " + RankName(who.rank, devices_) + " came with sizes " +
                                      Numbers(signature) + ", the others with " +
                                      Numbers(signature_));
  }
  published_[who.rank] = std::move(published);
  const bool complete = MarkArrived(who.rank);
  if (complete && state_ == State::kGathering) {
    state_ = State::kWorking;
    changed_.notify_all();
  }
  return complete;
}

bool Meeting::AddRefusal(const Attendance& who, const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  Fail(Fault::kAborted, "EP rank " + RankName(who.rank, devices_) + " refused: " + reason);
  return MarkArrived(who.rank);
}

void Meeting::Abort(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  Fail(Fault::kAborted, reason);
}

bool Meeting::has_failed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kFailed;
}

void Meeting::Fail(Fault fault, std::string text) {
  if (state_ != State::kGathering) return;
  state_ = State::kFailed;
  outcome_ = Failure{fault, std::string(op_) + ": " + text};
  changed_.notify_all();
}

std::optional<Outcome> Meeting::Wait(const Attendance& who, Clock::time_point patience_end,
                                     Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto until = std::min(patience_end, deadline);
  const auto is_settled = [this] { return state_ != State::kGathering; };
  if (!changed_.wait_until(lock, until, is_settled)) {
    if (until < deadline) return std::nullopt;
    Fail(Fault::kDeadlineExceeded, MissingRanks(who.timeout));
  }
  if (state_ == State::kWorking) Work(lock, who.rank);
  return outcome_;
}

void Meeting::Work(std::unique_lock<std::mutex>& lock, int64_t own_rank) {
  const int64_t ranks = static_cast<int64_t>(devices_.size());
  for (int64_t i = 0; i < ranks; ++i) {
    const int64_t rank = (own_rank + i) % ranks;
    if (!has_begun_[rank]) RunPiece(lock, rank);
  }
  // Every piece has been begun by a thread that is running it: this wait is short.
  changed_.wait(lock, [&] { return finished_ == ranks; });
}

void Meeting::RunPiece(std::unique_lock<std::mutex>& lock, int64_t rank) {
  has_begun_[rank] = true;
  lock.unlock();
  Outcome outcome;
  try {
    outcome = piece_(published_, rank);
  } catch (const std::bad_alloc&) {
    outcome = Failure{Fault::kResourceExhausted, std::string(op_) + ": out of memory"};
  } catch (const std::exception& error) {
    outcome = Failure{Fault::kInternal, std::string(op_) + ": " + error.what()};
  }
  lock.lock();
  if (outcome && !outcome_) outcome_ = std::move(outcome);
  if (++finished_ == static_cast<int64_t>(devices_.size())) changed_.notify_all();
}

std::string Meeting::MissingRanks(std::chrono::milliseconds timeout) const {
  std::vector<std::string> missing, present;
  for (size_t rank = 0; rank < devices_.size(); ++rank) {
    (has_arrived_[rank] ? present : missing)
        .push_back(RankName(static_cast<int64_t>(rank), devices_));
  }
  return "EP rank " + Join(missing) + " did not arrive within " + SecondsText(timeout) +
         ": expected " + std::to_string(devices_.size()) + " ranks, got " +
         std::to_string(present.size()) + ": " + Join(present) +
         ". All ranks of a group must run the same dispatches and combines (look for a lax.cond "
         "whose branch differs between ranks); MOEPROF_EP_TIMEOUT_S sets the wait";
}

}  // namespace moeprof
