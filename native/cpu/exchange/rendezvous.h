// Question: how do the ranks of an EP group meet, and what happens when one does not come?
//
// Each rank publishes where its rows lie and waits. Once all have arrived, every rank's copies are
// pieces of work: a waiting thread takes its own rank's piece, then any that nobody has begun. When
// the last piece is done all ranks leave, so no buffer is reused while another rank reads it.
//
//   rank 0   publish ──wait──────┐ piece 0 ─┐
//   rank 1   publish ──wait──────┤ piece 1 ─┼─ all pieces done: everyone leaves
//   rank 2        publish (last) ┘ piece 2 ─┘
//
// Why this cannot deadlock. XLA:CPU runs the 8 programs of 8 virtual devices on two pools of 8
// threads, and nothing orders independent custom calls or custom calls and collectives: a handler
// that blocks until its peers come can hold the last thread that they need (12 independent calls
// next to 12 psums did so, and XLA ended the process). So a handler holds XLA's thread only for
// kPatience and only once per device. Then the wait goes on in a thread of its own, and the handler
// returns a pending future, which XLA:CPU takes. Resuming XLA also needs a thread of its own: XLA
// goes on with the device's program inside the call that completes the future.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/failure.h"

namespace moeprof {

// What each rank published, in rank order.
using Published = std::vector<std::shared_ptr<const void>>;

// Does one rank's share of the work, reading what all ranks published. Pieces run concurrently.
using Piece = Outcome (*)(const Published& published, int64_t rank);

// One rank of an EP group at one call: who it is, and who else is expected.
struct Attendance {
  // The same in all ranks that meet, different for all others: which execution of which program,
  // which custom call in it (call_site.h), which EP group.
  std::tuple<int64_t, int64_t, int64_t> key;
  int64_t rank;
  std::vector<int64_t> devices;  // of the group, in rank order
  const char* op;                // for messages
  std::chrono::milliseconds timeout;
};

class Meeting;

// All meetings of this process.
class Rendezvous {
 public:
  static constexpr std::chrono::milliseconds kPatience{200};

  static Rendezvous& Instance();

  // Publishes, meets and works. Calls done(outcome) exactly once: on this thread before returning,
  // or later on another. `signature` holds the sizes that must be the same in every rank.
  void Attend(const Attendance& who, std::vector<int64_t> signature,
              std::shared_ptr<const void> published, Piece piece,
              std::function<void(const Outcome&)> done);

  // This rank cannot take part: fails the meeting for the ranks that wait and those still to come.
  void Refuse(const Attendance& who, const std::string& reason);

  // Fails every meeting that still waits for ranks. Returns how many.
  int64_t AbortAll(const std::string& reason);

 private:
  std::shared_ptr<Meeting> Arrive(const Attendance& who, const std::function<bool(Meeting&)>& add);
  bool MayBlock(int64_t device);
  void Unblock(int64_t device);
  void ForgetFailed();

  std::mutex mutex_;  // taken before a meeting's own
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::shared_ptr<Meeting>> gathering_;
  std::set<int64_t> blocked_devices_;
};

}  // namespace moeprof

// Fails every wait of this process; returns how many meetings that ended.
extern "C" __attribute__((visibility("default"))) int64_t MoeprofAbortRendezvous();
