// Question: which lengths did a kernel on this device find unsound?
//
// The lengths are never read by the host, so a handler that has put its kernels on the stream
// cannot know. The kernel reports into pinned memory and makes every result NaN; the next handler
// of the same operation on the device returns the error, or with MOEPROF_STRICT=1 in the
// environment, which makes handlers wait for their kernels, the handler itself.
#pragma once

#include <optional>
#include <string>

#include "gpu/grouped_gemm/fault.h"

namespace moeprof::gpu {

// The record of one operation on the current device, made at the first call; null where the
// device gives no pinned memory.
LengthsFault* LengthsFaultOf(const char* op);

// What was reported, which is forgotten; nothing where nothing was or the report is not finished.
std::optional<std::string> TakeLengthsFault(LengthsFault* record);

}  // namespace moeprof::gpu
