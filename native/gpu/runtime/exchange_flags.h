// Question: how do the GPUs of an EP group tell each other where they are in a call?
//
// Every rank owns one ExchangeFlags in its GPU's memory, zeroed once and mapped by all ranks. A
// rank writes into its peers' flags and waits on its own, so that waiting costs no link traffic.
// Calls of a group are numbered from 1; every flag holds the number of the last call it was raised
// for and only grows, so nothing is ever cleared.
//
//   ready[r]   rank r's inputs of call n are complete, and its output buffers are free
//   done[r]    rank r has written into my memory, or read from it, all that call n asks for
//
// A kernel that has seen every `done` may end: XLA may then reuse the call's buffers. Counts of one
// dispatch are not overwritten by the next: a peer makes those only after this rank is `done`.
#pragma once

#include <cstdint>

namespace moeprof::gpu {

constexpr int kMaxRanks = 8;

struct ExchangeFlags {
  uint64_t ready[kMaxRanks];
  uint64_t done[kMaxRanks];
  int32_t counts[kMaxRanks][kMaxRanks];  // [source][destination] rows of a dispatch; below 0: none
                                         // can be told, the source's routing is not sound
  // Of this rank's own kernels: how many blocks have finished, and whether one found a fault.
  uint32_t plan_ticket, last_ticket;
  uint32_t plan_is_bad;
};

}  // namespace moeprof::gpu
