// Question: how are the tiles of a grouped GEMM spread over threads?
#pragma once

#include "cpu/grouped_gemm/kernel.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

// Computes all of op.out on at most `max_threads` threads (0: every core). False: out of memory.
template <typename T>
bool LaunchGroupedGemm(xla::ffi::ThreadPool& pool, const GroupedGemm<T>& op,
                       const GroupOffsets& offsets, int64_t max_threads);

}  // namespace moeprof
