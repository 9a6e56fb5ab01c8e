#include "cpu/moe_combine/launch.h"

#include <memory>

#include "cpu/common/convert.h"

namespace moeprof {
namespace {

struct Participant {
  MoeHandle handle;
  int64_t hidden, top_k;
  CombineSource source;
  CombineTarget target;
};

template <typename T>
Outcome SumPiece(const Published& published, int64_t rank) {
  std::vector<CombineSource> sources;
  for (const auto& entry : published) {
    sources.push_back(static_cast<const Participant*>(entry.get())->source);
  }
  const auto& own = *static_cast<const Participant*>(published[rank].get());
  SumRows<T>(own.handle, own.hidden, own.top_k, sources, rank, own.target);
  return std::nullopt;
}

}  // namespace

template <typename T>
xla::ffi::Future LaunchCombine(const Attendance& member, const MoeHandle& handle, int64_t hidden,
                               int64_t top_k, const CombineSource& source,
                               const CombineTarget& target) {
  return Meet(member,
              {handle.tokens, handle.channels, hidden, top_k, static_cast<int64_t>(sizeof(T))},
              std::make_shared<Participant>(Participant{handle, hidden, top_k, source, target}),
              SumPiece<T>);
}

template xla::ffi::Future LaunchCombine<float>(const Attendance&, const MoeHandle&, int64_t,
                                               int64_t, const CombineSource&, const CombineTarget&);
template xla::ffi::Future LaunchCombine<BFloat16>(const Attendance&, const MoeHandle&, int64_t,
                                                  int64_t, const CombineSource&,
                                                  const CombineTarget&);
template xla::ffi::Future LaunchCombine<Float16>(const Attendance&, const MoeHandle&, int64_t,
                                                 int64_t, const CombineSource&,
                                                 const CombineTarget&);

}  // namespace moeprof
