// Question: which rank of which EP group does this call run on?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/caught.h"
#include "cpu/exchange/call_site.h"
#include "cpu/exchange/rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace moeprof {

// What every dispatch and combine handler is told besides its buffers.
struct MoeCall {
  const char* op;
  xla::ffi::RunId run;
  int32_t device;
  const CallSite* site;
  int64_t ep_size;
  xla::ffi::Span<const int64_t> groups;  // device ordinals, ep_size per group, in rank order
  int64_t timeout_ms;
};

// Finds the device in the groups. Returns the complaint where it is in none.
std::optional<std::string> FindMember(const MoeCall& call, Attendance& member);

// The FFI error for a failure; the future for work that is done or will be.
xla::ffi::Error ToError(const Failure& failure);
xla::ffi::Future Refused(const MoeCall& call, const std::string& complaint);

// Meets the other ranks of `member`; the future ends when all pieces are done, or with the failure.
xla::ffi::Future Meet(const Attendance& member, std::vector<int64_t> signature,
                      std::shared_ptr<const void> published, Piece piece);

// As Refused, and fails the other ranks of `member` at once.
xla::ffi::Future RefuseForAll(const MoeCall& call, const Attendance& member,
                              const std::string& complaint);

// The future with this error; tells the other ranks as far as memory allows.
xla::ffi::Future FailedForAll(const MoeCall& call, xla::ffi::Error error);

// What `body` returns. Where it throws, the error for that, and the other ranks fail at once.
template <typename Body>
xla::ffi::Future Guarded(const MoeCall& call, const Body& body) {
  try {
    return body();
  } catch (...) {
    return FailedForAll(call, CaughtError(call.op));
  }
}

}  // namespace moeprof
