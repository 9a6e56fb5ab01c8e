// Question: how do we get memory on a GPU whose kernels may be waiting for other GPUs?
#pragma once

#include <cstddef>
#include <variant>

#include "common/failure.h"
#include "gpu/runtime/gpu_runtime.h"

namespace moeprof::gpu {

// Zeroed memory of the current device; whoever asks keeps it for good. Works on a stream of its own
// that waits for no other: a kernel that spins would hold up anything on the default stream.
// Coherent with other GPUs and the host while kernels run.
std::variant<void*, gpuError_t> AllocateZeroed(size_t bytes);

}  // namespace moeprof::gpu
