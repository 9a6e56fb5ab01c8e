// Question: how are the tiles of a variable-K grouped GEMM spread over threads?
#pragma once

#include "cpu/grouped_gemm_variable_k/kernel.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

// Computes all of op.out on at most `max_threads` threads (0: every core). False: out of memory.
template <typename T, typename Out>
bool LaunchVariableKGemm(xla::ffi::ThreadPool& pool, const VariableKGemm<T, Out>& op,
                         const GroupOffsets& offsets, int64_t max_threads);

}  // namespace moeprof
