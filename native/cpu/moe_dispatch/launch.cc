#include "cpu/moe_dispatch/launch.h"

#include <memory>

#include "cpu/common/poison.h"

namespace moeprof {
namespace {

struct Participant {
  DispatchSizes sizes;
  DispatchSource source;
  DispatchTarget target;
};

const Participant& At(const Published& published, int64_t rank) {
  return *static_cast<const Participant*>(published[rank].get());
}

Outcome PullPiece(const Published& published, int64_t rank) {
  std::vector<DispatchSource> sources;
  for (size_t i = 0; i < published.size(); ++i) {
    sources.push_back(At(published, static_cast<int64_t>(i)).source);
  }
  const Participant& own = At(published, rank);
  PullRows(own.sizes, sources, rank, own.target, PoisonEnabled());
  return std::nullopt;
}

}  // namespace

xla::ffi::Future LaunchDispatch(const Attendance& member, const DispatchSizes& sizes,
                                const DispatchSource& source, const SendPlan& plan,
                                const DispatchTarget& target) {
  PlanSends(sizes, source.topk_idx, plan);
  auto participant = std::make_shared<Participant>(Participant{sizes, source, target});
  return Meet(member,
              {sizes.tokens, sizes.row_bytes, sizes.scales, sizes.top_k, sizes.experts_per_rank,
               sizes.channels},
              std::move(participant), PullPiece);
}

}  // namespace moeprof
