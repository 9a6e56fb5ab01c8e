#include "cpu/exchange/member.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "common/fault_code.h"

namespace moeprof {
namespace {

namespace ffi = xla::ffi;

ffi::Future Failed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

}  // namespace

std::optional<std::string> FindMember(const MoeCall& call, Attendance& member) {
  const auto* const found = std::find(call.groups.begin(), call.groups.end(), call.device);
  if (found == call.groups.end()) {
    return "device " + std::to_string(call.device) + " is in no EP group of setup()";
  }
  const int64_t position = found - call.groups.begin();
  const int64_t group = position / call.ep_size;
  const int64_t* first = call.groups.begin() + group * call.ep_size;
  member.key = {call.run.run_id, call.site->number, group};
  member.rank = position % call.ep_size;
  member.devices = std::vector<int64_t>(first, first + call.ep_size);
  member.op = call.op;
  member.timeout = std::chrono::milliseconds(call.timeout_ms);
  return std::nullopt;
}

ffi::Error ToError(const Failure& failure) {
  return ffi::Error(ErrorCodeOf(failure.fault), failure.text);
}

ffi::Future Refused(const MoeCall& call, const std::string& complaint) {
  return Failed(ffi::Error::InvalidArgument(std::string(call.op) + ": " + complaint));
}

ffi::Future RefuseForAll(const MoeCall& call, const Attendance& member,
                         const std::string& complaint) {
  Rendezvous::Instance().Refuse(member, complaint);
  return Refused(call, complaint);
}

ffi::Future FailedForAll(const MoeCall& call, ffi::Error error) {
  try {
    Attendance member;
    if (!FindMember(call, member)) Rendezvous::Instance().Refuse(member, error.message());
  } catch (const std::exception&) {
    // They find out when their wait ends.
  }
  return Failed(std::move(error));
}

ffi::Future Meet(const Attendance& member, std::vector<int64_t> signature,
                 std::shared_ptr<const void> published, Piece piece) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const auto done = [promise](const Outcome& outcome) mutable {
    if (outcome) {
      promise.SetError(ToError(*outcome));
    } else {
      promise.SetAvailable();
    }
  };
  Rendezvous::Instance().Attend(member, std::move(signature), std::move(published), piece, done);
  return future;
}

}  // namespace moeprof
