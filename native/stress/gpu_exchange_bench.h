// Question: how fast are dispatch, combine and cached dispatch between two GPUs?
#pragma once

namespace moeprof::stress {

// Prints a line of JSON per operation, tokens and number of blocks (0: the copy engines):
// microseconds and GB/s of payload that a rank receives over the link, beside a peer copy of the
// same bytes in both directions at once. Returns the exit status.
int RunBench();

}  // namespace moeprof::stress
