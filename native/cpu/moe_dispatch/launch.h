// Question: how do the ranks of a group carry out one dispatch together?
#pragma once

#include "cpu/exchange/member.h"
#include "cpu/moe_dispatch/kernel.h"

namespace moeprof {

// Lists what this rank sends, meets the others and pulls this rank's rows.
xla::ffi::Future LaunchDispatch(const Attendance& member, const DispatchSizes& sizes,
                                const DispatchSource& source, const SendPlan& plan,
                                const DispatchTarget& target);

}  // namespace moeprof
