// Question: is this process a rank of a group of processes, and how does it meet the others then?
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "common/failure.h"
#include "gpu/meeting/peer_seat.h"

namespace moeprof::gpu {

// The seat in the group of processes that this process has joined, or null where it has joined
// none. `groups` must have that group; they are as for FindSeat.
std::variant<std::unique_ptr<PeerSeat>, Failure> FindProcessSeat(const int64_t* groups,
                                                                 int64_t count, int64_t ranks);

}  // namespace moeprof::gpu
