// Question: what do the ranks of an EP group tell each other at a call, and what do they learn?
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moeprof::gpu {

constexpr size_t kMaxPeerBuffers = 32;

// Memory that peers read or write; null for none.
struct PeerBuffer {
  void* pointer = nullptr;
  size_t bytes = 0;
};

// What a rank shows the others: which call it makes, and where its buffers are.
struct PeerCall {
  std::string op;
  std::vector<int64_t> signature;   // the same in all ranks
  std::vector<PeerBuffer> buffers;  // the same number in all ranks, up to kMaxPeerBuffers
};

// What the ranks learn at a meeting.
struct Met {
  uint64_t number;                           // of the call in its group, from 1
  std::vector<std::vector<void*>> pointers;  // [rank][buffer], as this rank's GPU reaches them
};

}  // namespace moeprof::gpu
