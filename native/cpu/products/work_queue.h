// Question: how are independent pieces of work spread over XLA's threads without a deadlock?
//
// The calling thread takes pieces from a shared counter itself and asks the pool for help. It
// waits only for pieces that a helper has already taken: a helper that starts late finds the
// counter exhausted and leaves without touching anything. So progress never depends on a free pool
// thread, even where several virtual devices share one pool or other handlers block its threads.
#pragma once

#include <cstdint>
#include <functional>

#include "xla/ffi/api/ffi.h"

namespace moeprof {

// Threads worth using in a call: the machine's cores, or `limit` of them where 0 < limit < cores.
int64_t WorkerCount(int64_t limit);

// Calls piece(i) once for each i in [0, count), on the calling thread and on up to `workers` - 1
// threads of `pool`. Lower i start first. Returns false where a piece threw (out of memory).
bool RunPieces(xla::ffi::ThreadPool& pool, int64_t count, int64_t workers,
               const std::function<void(int64_t)>& piece);

}  // namespace moeprof
