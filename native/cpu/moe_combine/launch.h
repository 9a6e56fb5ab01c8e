// Question: how do the ranks of a group carry out one combine together?
#pragma once

#include "cpu/exchange/member.h"
#include "cpu/moe_combine/kernel.h"

namespace moeprof {

// Meets the others and sums the rows of this rank's tokens. T as in SumRows.
template <typename T>
xla::ffi::Future LaunchCombine(const Attendance& member, const MoeHandle& handle, int64_t hidden,
                               int64_t top_k, const CombineSource& source,
                               const CombineTarget& target);

}  // namespace moeprof
