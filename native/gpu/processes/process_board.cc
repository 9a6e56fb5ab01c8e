#include "gpu/processes/process_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include "common/seconds_text.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kCacheLine = 64;
constexpr std::chrono::microseconds kSpin{20};  // a peer that is close by comes within this
constexpr milliseconds kSlice{20};              // then the kernel wakes us, or we look at the peers

struct Card {
  char op[64];
  uint32_t is_refusal;  // then the payload says why
  uint32_t signature_length;
  uint32_t payload_length;
  int64_t signature[ProcessBoard::kMaxSignature];
  char payload[ProcessBoard::kMaxPayloadBytes];

  std::vector<int64_t> Signature() const { return {signature, signature + signature_length}; }
};

struct alignas(kCacheLine) Slot {
  std::atomic<uint64_t> posted;  // the last round whose card is there; rounds count from 1
  std::atomic<uint32_t> has_left;
  Card cards[2];
};

enum FailureState : uint32_t { kNone, kBeingWritten, kWritten };

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int64_t Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr,
                 0);
}

std::string Numbers(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

}  // namespace

// Begins as zeros, which is the state before the first round.
struct ProcessBoard::Memory {
  alignas(kCacheLine) std::atomic<uint32_t> bell;  // rung whenever something changes
  std::atomic<uint32_t> sleepers;
  alignas(kCacheLine) std::atomic<uint32_t> failure_state;
  int32_t fault;
  char reason[2048];

  // One per rank, behind this.
  Slot& SlotOf(int rank) { return reinterpret_cast<Slot*>(this + 1)[rank]; }

  void Ring() {
    bell.fetch_add(1);
    if (sleepers.load() > 0) Futex(&bell, FUTEX_WAKE, INT_MAX, nullptr);
  }
};

size_t ProcessBoard::SharedBytes(int ranks) {
  return sizeof(Memory) + sizeof(Slot) * static_cast<size_t>(ranks);
}

ProcessBoard::ProcessBoard(std::unique_ptr<ProcessLink> link)
    : link_(std::move(link)), memory_(static_cast<Memory*>(link_->shared())) {}

ProcessBoard::~ProcessBoard() { Leave(); }

void ProcessBoard::Leave() {
  memory_->SlotOf(link_->rank()).has_left.store(1, std::memory_order_release);
  memory_->Ring();
}

Outcome ProcessBoard::Failed() const {
  if (memory_->failure_state.load(std::memory_order_acquire) != kWritten) return std::nullopt;
  return Failure{static_cast<Fault>(memory_->fault), memory_->reason};
}

Failure ProcessBoard::Fail(const Failure& failure) {
  uint32_t expected = kNone;
  if (memory_->failure_state.compare_exchange_strong(expected, kBeingWritten)) {
    memory_->fault = static_cast<int32_t>(failure.fault);
    const size_t length = std::min(failure.text.size(), sizeof(memory_->reason) - 1);
    std::memcpy(memory_->reason, failure.text.data(), length);
    memory_->reason[length] = '\0';
    memory_->failure_state.store(kWritten, std::memory_order_release);
    memory_->Ring();
    return failure;
  }
  // Another rank is writing, for nanoseconds, unless it was killed just there.
  const auto end = Clock::now() + milliseconds(100);
  while (Clock::now() < end) {
    if (auto first = Failed()) return *first;
    Pause();
  }
  return failure;
}

bool ProcessBoard::IsComplete(uint64_t round) const {
  for (int rank = 0; rank < link_->ranks(); ++rank) {
    if (memory_->SlotOf(rank).posted.load(std::memory_order_acquire) < round) return false;
  }
  return true;
}

void ProcessBoard::WaitForBell(uint32_t heard) {
  const timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
  memory_->sleepers.fetch_add(1);
  Futex(&memory_->bell, FUTEX_WAIT, heard, &slice);  // returns at once where the bell rang since
  memory_->sleepers.fetch_sub(1);
}

bool ProcessBoard::IsGone(int rank) const {
  return memory_->SlotOf(rank).has_left.load(std::memory_order_acquire) != 0 ||
         !link_->IsAlive(rank);
}

int ProcessBoard::FindGone() const {
  for (int rank = 0; rank < link_->ranks(); ++rank) {
    if (IsGone(rank)) return rank;
  }
  return -1;
}

std::string ProcessBoard::GoneText(int rank) const {
  const bool on_purpose = memory_->SlotOf(rank).has_left.load(std::memory_order_acquire) != 0;
  return "EP rank " + link_->NameOf(rank) +
         (on_purpose ? " has left its EP group (reset_runtime, or the end of its program)"
                     : " has ended");
}

// Posts this rank's card of the next round.
Outcome ProcessBoard::Post(const BoardCard& card, const std::string& refusal,
                           milliseconds timeout) {
  if (auto failure = Failed()) {
    return Failure{failure->fault, failure->text +
                                       ". The EP group can no longer be used: call reset_runtime() "
                                       "and setup() again in all of its processes"};
  }
  // A rank that refused did not wait for the others.
  if (auto failure = AwaitRound(round_, card.op, timeout)) return Fail(*failure);
  ++round_;
  Slot& slot = memory_->SlotOf(link_->rank());
  Card& own = slot.cards[round_ % 2];
  const std::string& payload = refusal.empty() ? card.payload : refusal;
  std::memset(own.op, 0, sizeof(own.op));
  std::memcpy(own.op, card.op.data(), std::min(card.op.size(), sizeof(own.op) - 1));
  own.is_refusal = !refusal.empty();
  own.signature_length = static_cast<uint32_t>(card.signature.size());
  std::copy(card.signature.begin(), card.signature.end(), own.signature);
  own.payload_length = static_cast<uint32_t>(std::min(payload.size(), kMaxPayloadBytes));
  std::memcpy(own.payload, payload.data(), own.payload_length);
  slot.posted.store(round_, std::memory_order_release);
  memory_->Ring();
  return std::nullopt;
}

Failure ProcessBoard::Refuse(const std::string& op, const std::string& reason,
                             milliseconds timeout) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto failure = Post({op, {}, ""}, reason.empty() ? "no reason" : reason, timeout)) {
    return *failure;
  }
  return {Fault::kAborted,
          op + ": EP rank " + link_->NameOf(link_->rank()) + " refused: " + reason};
}

std::variant<std::vector<std::string>, Failure> ProcessBoard::Meet(const BoardCard& card,
                                                                   milliseconds timeout) {
  if (card.op.size() >= sizeof(Card::op) || card.signature.size() > kMaxSignature ||
      card.payload.size() > kMaxPayloadBytes) {
    return Refuse(card.op, "its card is too large for the board", timeout);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto failure = Post(card, "", timeout)) return *failure;
  if (auto failure = AwaitRound(round_, card.op, timeout)) return Fail(*failure);
  if (auto failure = CheckRound(card.op)) return *failure;
  std::vector<std::string> payloads;
  for (int rank = 0; rank < link_->ranks(); ++rank) {
    const Card& read = memory_->SlotOf(rank).cards[round_ % 2];
    payloads.emplace_back(read.payload, read.payload_length);
  }
  return payloads;
}

Outcome ProcessBoard::AwaitRound(uint64_t round, const std::string& op, milliseconds timeout) {
  const auto start = Clock::now();
  do {
    if (IsComplete(round)) return std::nullopt;
    Pause();
  } while (Clock::now() < start + kSpin);
  auto next_look = start + kSlice;  // a look asks the kernel several things per peer
  for (;;) {
    const uint32_t heard = memory_->bell.load();
    if (IsComplete(round)) return std::nullopt;
    if (auto failure = Failed()) return failure;
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + kSlice;
      const int gone = FindGone();
      // It may have posted the round before it left.
      if (gone >= 0 && !IsComplete(round)) {
        return Failure{Fault::kAborted, op + ": " + GoneText(gone) + " before round " +
                                            std::to_string(round) + " of its EP group: expected " +
                                            std::to_string(link_->ranks()) + " ranks"};
      }
    }
    if (Clock::now() >= start + timeout) return Missing(round, op, timeout);
    WaitForBell(heard);
  }
}

Failure ProcessBoard::Missing(uint64_t round, const std::string& op, milliseconds timeout) const {
  std::string missing, present;
  int arrived = 0;
  for (int rank = 0; rank < link_->ranks(); ++rank) {
    const bool is_here = memory_->SlotOf(rank).posted.load(std::memory_order_acquire) >= round;
    std::string& list = is_here ? present : missing;
    list += (list.empty() ? "" : ", ") + link_->NameOf(rank);
    arrived += is_here;
  }
  return {Fault::kDeadlineExceeded,
          op + ": EP rank " + missing + " did not arrive within " + SecondsText(timeout) +
              ": expected " + std::to_string(link_->ranks()) + " ranks, got " +
              std::to_string(arrived) + ": " + present +
              ". All ranks of a group must run the same dispatches and combines (look for a "
              "lax.cond whose branch differs between ranks); MOEPROF_EP_TIMEOUT_S sets the wait"};
}

// All ranks see the same cards, and so come to the same verdict.
Outcome ProcessBoard::CheckRound(const std::string& op) const {
  for (int rank = 0; rank < link_->ranks(); ++rank) {
    const Card& card = memory_->SlotOf(rank).cards[round_ % 2];
    if (!card.is_refusal) continue;
    return Failure{Fault::kAborted, op + ": EP rank " + link_->NameOf(rank) + " refused: " +
                                        std::string(card.payload, card.payload_length)};
  }
  const Card& first = memory_->SlotOf(0).cards[round_ % 2];
  for (int rank = 1; rank < link_->ranks(); ++rank) {
    const Card& other = memory_->SlotOf(rank).cards[round_ % 2];
    if (std::strcmp(other.op, first.op) != 0) {
      return Failure{Fault::kInvalidArgument, op + ": EP rank " + link_->NameOf(rank) +
                                                  " came with " + other.op + ", EP rank " +
                                                  link_->NameOf(0) + " with " + first.op};
    }
    if (other.Signature() != first.Signature()) {
      return Failure{Fault::kInvalidArgument, op + ": EP rank " + link_->NameOf(rank) +
                                                  " came with sizes " + Numbers(other.Signature()) +
                                                  ", EP rank " + link_->NameOf(0) + " with " +
                                                  Numbers(first.Signature())};
    }
  }
  return std::nullopt;
}

}  // namespace moeprof::gpu
