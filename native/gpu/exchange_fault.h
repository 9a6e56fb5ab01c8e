// Question: what does a dispatch or combine on the GPU say about operands that are not sound, or a
// peer that does not come?
//
// A kernel cannot return an error. It writes what it found into one record per device in pinned
// host memory, and makes its outputs useless (NaN rows, -1 ids). The next handler on that device
// returns the error; with MOEPROF_STRICT=1 the same one does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cpu/rendezvous.h"

namespace moeprof::gpu {

enum class ExchangeFaultKind : int32_t {
  kNone = 0,
  kLate,     // rank `a` waited `high` ns for rank `b`: it was at call `found`, not `low`
  kAborted,  // as kLate, but a rank of the group is gone
  kExpert,   // topk_idx of token `a`, slot `b` is `found`, outside [0, high)
  kPrefix,   // rank_prefix_matrix ends the rows from rank `a` at `found`, outside [low, high]
  kSource,   // recv_src_idx of row `a` is `found`, outside [0, high)
  kRow,      // token `a` lies at row `found` of rank `b`, outside [0, high)
};

struct ExchangeFaultText {
  ExchangeFaultKind kind;
  int64_t a, b, found, low, high;
};

// `claimed` goes from 0 to 1 by the one thread that reports; `kind` is written last.
struct ExchangeFault {
  int32_t claimed;
  ExchangeFaultText text;
};

// The record of a CUDA device; null where there is no memory for it. Never freed.
ExchangeFault* ExchangeFaultOf(int device);

// What the device has reported since the last time, as the error that `op` returns.
Outcome TakeExchangeFault(int device, const char* op);

#ifdef __CUDACC__
// The first report counts, until the host has taken it.
__device__ inline void ReportFault(ExchangeFault* fault, const ExchangeFaultText& text) {
  if (fault == nullptr || atomicCAS_system(&fault->claimed, 0, 1) != 0) return;
  volatile ExchangeFaultText& to = fault->text;
  to.a = text.a;
  to.b = text.b;
  to.found = text.found;
  to.low = text.low;
  to.high = text.high;
  __threadfence_system();
  *reinterpret_cast<volatile int32_t*>(&to.kind) = static_cast<int32_t>(text.kind);
  __threadfence_system();
}
#endif

}  // namespace moeprof::gpu
