// Question: how fast are dispatch, combine and cached dispatch between two GPUs?
#pragma once

namespace moeprof::stress {

// Prints microseconds per operation and GB/s of payload that a rank receives over the link, by
// tokens and number of blocks, beside a peer copy of the same bytes in both directions at once.
// Returns the exit status.
int RunBench();

}  // namespace moeprof::stress
