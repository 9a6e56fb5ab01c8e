#include "cpu/moe_cached_dispatch/launch.h"

#include <memory>

#include "cpu/common/poison.h"
#include "cpu/moe_cached_dispatch/kernel.h"

namespace moeprof {
namespace {

struct Participant {
  MoeHandle handle;
  int64_t row_bytes;
  const uint8_t* x;
  uint8_t* recv_x;
};

Outcome PullPiece(const Published& published, int64_t rank) {
  std::vector<const uint8_t*> sources;
  for (const auto& entry : published) {
    sources.push_back(static_cast<const Participant*>(entry.get())->x);
  }
  const auto& own = *static_cast<const Participant*>(published[rank].get());
  PullCachedRows(own.handle, own.row_bytes, sources, rank, own.recv_x, PoisonEnabled());
  return std::nullopt;
}

}  // namespace

xla::ffi::Future LaunchCachedDispatch(const Attendance& member, const MoeHandle& handle,
                                      int64_t row_bytes, const uint8_t* x, uint8_t* recv_x) {
  return Meet(member, {handle.tokens, row_bytes},
              std::make_shared<Participant>(Participant{handle, row_bytes, x, recv_x}), PullPiece);
}

}  // namespace moeprof
