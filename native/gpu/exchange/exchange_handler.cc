#include "gpu/exchange/exchange_handler.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "common/caught.h"
#include "gpu/exchange/moe_cached_dispatch_launch.h"
#include "gpu/exchange/moe_combine_launch.h"
#include "gpu/exchange/moe_dispatch_launch.h"
#include "gpu/faults/ffi_error.h"
#include "gpu/runtime/on_device.h"
#include "gpu/runtime/runtime_failure.h"

namespace moeprof::gpu {
namespace {

namespace ffi = xla::ffi;

// As many as NCCL's kernels have blocks at most: none of those is sure to fit beside one of ours.
constexpr int kFreeMultiprocessors = 32;

// All that an exchange may need, on the current device.
gpuError_t LoadKernels() {
  for (const auto load : {LoadDispatchKernels, LoadCachedDispatchKernel, LoadCombineKernels}) {
    if (const gpuError_t error = load(); error != gpuSuccess) return error;
  }
  return gpuSuccess;
}

Outcome Launch(const HandlerCall& call, PeerSeat& seat, const FaultSink& faults,
               const PlannedCall& planned, const Met& met) {
  ExchangeCall exchange{};
  std::copy(seat.flags().begin(), seat.flags().end(), exchange.flags);
  exchange.rank = seat.rank();
  exchange.ranks = seat.ranks();
  exchange.number = met.number;
  exchange.timeout_ns = static_cast<uint64_t>(call.timeout_ms) * 1'000'000;
  exchange.abort = seat.abort_word();
  exchange.op = call.op;
  exchange.faults = faults;
  if (const gpuError_t error = planned.launch(exchange, met); error != gpuSuccess) {
    const Failure failure = RuntimeFailure("launch", error);
    seat.Fail({failure.fault, std::string(NameOf(call.op)) + ": rank " +
                                  std::to_string(seat.rank()) + ": " + failure.text});
    return failure;
  }
  return AfterLaunch(call.stream);
}

ffi::Error Run(const HandlerCall& call, const Planner& plan) {
  const OnDevice scope(call.device);
  if (scope.error() != gpuSuccess) {
    return ToError(call.op, RuntimeFailure("making the GPU current", scope.error()));
  }
  const auto timeout = std::chrono::milliseconds(call.timeout_ms);
  auto found = FindSeat(call.groups.begin(), static_cast<int64_t>(call.groups.size()), call.ep_size,
                        call.device, call.run.run_id, LoadKernels);
  if (auto* failure = std::get_if<Failure>(&found)) return ToError(call.op, *failure);
  PeerSeat& seat = *std::get<std::unique_ptr<PeerSeat>>(found);
  // Before the meeting: memory is not allocated while a peer's kernel may wait for ours.
  const auto sink = SinkUnlessFaulty();
  if (const auto* fault = std::get_if<Failure>(&sink)) {
    seat.Refuse(NameOf(call.op), fault->text, timeout);
    return ToError(call.op, *fault);
  }
  const PlannedCall planned = plan();
  if (!planned.complaint.empty()) {
    seat.Refuse(NameOf(call.op), planned.complaint, timeout);
    return ToError(call.op, {Fault::kInvalidArgument, planned.complaint});
  }
  auto met = seat.Meet(planned.call, timeout);
  if (auto* failure = std::get_if<Failure>(&met)) return ToError(call.op, *failure);
  const Outcome outcome =
      Launch(call, seat, std::get<FaultSink>(sink), planned, std::get<Met>(met));
  return outcome ? ToError(call.op, *outcome) : ffi::Error::Success();
}

}  // namespace

ffi::Error RunExchange(const HandlerCall& call, const Planner& plan) {
  return Guarded(NameOf(call.op), [&] { return Run(call, plan); });
}

int ExchangeBlocks(int device, int64_t wanted) {
  int multiprocessors = 0;
  (void)gpuMultiprocessorCount(&multiprocessors, device);
  const int64_t most = std::max(1, multiprocessors - kFreeMultiprocessors);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, most));
}

}  // namespace moeprof::gpu
