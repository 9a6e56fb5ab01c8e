// Question: how do the ranks of a group carry out one cached dispatch together?
#pragma once

#include "cpu/exchange/handle.h"
#include "cpu/exchange/member.h"

namespace moeprof {

// Meets the others and pulls this rank's rows of row_bytes each.
xla::ffi::Future LaunchCachedDispatch(const Attendance& member, const MoeHandle& handle,
                                      int64_t row_bytes, const uint8_t* x, uint8_t* recv_x);

}  // namespace moeprof
