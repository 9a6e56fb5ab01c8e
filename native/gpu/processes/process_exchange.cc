#include "gpu/processes/process_exchange.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "gpu/runtime/on_device.h"
#include "gpu/runtime/runtime_failure.h"

namespace moeprof::gpu {
namespace {

using std::chrono::milliseconds;

// A whole allocation of the driver, so that a handle to it reveals nothing else of this process.
constexpr size_t kAllocationBytes = size_t{2} << 20;

static_assert(kMaxPeerBuffers * sizeof(SharedAddress) <= ProcessBoard::kMaxPayloadBytes);
static_assert(sizeof(AllocationNotice) <= ProcessLink::kMaxMessageBytes);

}  // namespace

ProcessExchange::ProcessExchange(std::unique_ptr<ProcessBoard> board, const DriverCalls& driver,
                                 int device)
    : board_(std::move(board)), driver_(driver), device_(device), exports_(driver) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool is_own = rank == board_->link().rank();
    imports_.push_back(is_own ? nullptr : std::make_unique<MemoryImports>(driver, rank, device));
  }
}

ProcessExchange::Joined ProcessExchange::Join(const std::string& token, int rank, int ranks,
                                              int device, size_t flag_bytes, milliseconds timeout) {
  std::string missing;
  const DriverCalls* const driver = LoadDriverCalls(missing);
  if (driver == nullptr) {
    return Failure{Fault::kInternal, "the CUDA driver has no " + missing};
  }
  const OnDevice scope(device);
  if (scope.error() != cudaSuccess) return RuntimeFailure("cudaSetDevice", scope.error());
  auto connected =
      ProcessLink::Connect(token, rank, ranks, ProcessBoard::SharedBytes(ranks), timeout);
  if (auto* failure = std::get_if<Failure>(&connected)) return *failure;
  auto board =
      std::make_unique<ProcessBoard>(std::move(std::get<std::unique_ptr<ProcessLink>>(connected)));
  std::unique_ptr<ProcessExchange> exchange(new ProcessExchange(std::move(board), *driver, device));
  if (auto failure = exchange->ShareFlags(flag_bytes, timeout)) return *failure;
  return exchange;
}

Outcome ProcessExchange::ShareFlags(size_t flag_bytes, milliseconds timeout) {
  const size_t bytes = (flag_bytes + kAllocationBytes - 1) / kAllocationBytes * kAllocationBytes;
  cudaError_t error = cudaMalloc(&own_flags_, bytes);
  if (error == cudaSuccess) error = cudaMemset(own_flags_, 0, bytes);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();  // zero before a peer can write
  if (error != cudaSuccess) {
    const Failure failure = RuntimeFailure("flags of the EP group", error);
    return Refuse("setup", failure.text, timeout);
  }
  auto met = Meet({"setup", {static_cast<int64_t>(flag_bytes)}, {{own_flags_, bytes}}}, timeout);
  if (auto* failure = std::get_if<Failure>(&met)) return *failure;
  for (const auto& pointers : std::get<Pointers>(met)) flags_.push_back(pointers[0]);
  // Nobody starts before all have mapped the flags.
  auto mapped = Meet({"setup", {static_cast<int64_t>(flag_bytes)}, {}}, timeout);
  if (auto* failure = std::get_if<Failure>(&mapped)) return *failure;
  return std::nullopt;
}

bool ProcessExchange::AllHaveLeft() const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != this->rank() && !board_->IsGone(rank)) return false;
  }
  return true;
}

void ProcessExchange::Drain() const {
  const OnDevice scope(device_);
  cudaDeviceSynchronize();
}

void ProcessExchange::Leave() {
  board_->Leave();
  board_->Fail({Fault::kAborted, board_->GoneText(rank())});
}

ProcessExchange::~ProcessExchange() {
  const OnDevice scope(device_);
  cudaDeviceSynchronize();
  imports_.clear();  // before the owners may free what we had mapped
  board_->Leave();
  const Deadline end = std::chrono::steady_clock::now() + milliseconds(1000);
  while (!AllHaveLeft() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (AllHaveLeft()) cudaFree(own_flags_);
}

std::variant<ProcessExchange::Pointers, Failure> ProcessExchange::Meet(const PeerCall& call,
                                                                       milliseconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  auto payload = ToPayload(call, deadline);
  if (auto* failure = std::get_if<Failure>(&payload)) {
    return board_->Refuse(call.op, failure->text, timeout);
  }
  std::vector<int64_t> signature = call.signature;
  signature.push_back(static_cast<int64_t>(call.buffers.size()));
  auto met = board_->Meet({call.op, signature, std::get<std::string>(payload)}, timeout);
  if (auto* failure = std::get_if<Failure>(&met)) return *failure;
  auto pointers = ToPointers(call, std::get<std::vector<std::string>>(met), deadline);
  if (auto* failure = std::get_if<Failure>(&pointers)) {
    // The others go on with this call: only a group that has failed ends them.
    const std::string who = board_->link().NameOf(rank());
    return board_->Fail({failure->fault, call.op + ": EP rank " + who + ": " + failure->text});
  }
  return pointers;
}

std::variant<std::string, Failure> ProcessExchange::ToPayload(const PeerCall& call,
                                                              Deadline deadline) {
  if (call.buffers.size() > kMaxPeerBuffers) {
    return Failure{Fault::kInternal, "too many buffers for a card"};
  }
  exports_.BeginRound();
  std::string payload;
  for (const PeerBuffer& buffer : call.buffers) {
    auto shared = exports_.Share(board_->link(), buffer.pointer, buffer.bytes, deadline);
    if (auto* failure = std::get_if<Failure>(&shared)) return *failure;
    const SharedAddress& address = std::get<SharedAddress>(shared);
    payload.append(reinterpret_cast<const char*>(&address), sizeof(address));
  }
  return payload;
}

std::variant<ProcessExchange::Pointers, Failure> ProcessExchange::ToPointers(
    const PeerCall& call, const std::vector<std::string>& payloads, Deadline deadline) {
  Pointers pointers(payloads.size());
  for (size_t rank = 0; rank < payloads.size(); ++rank) {
    for (size_t i = 0; i < call.buffers.size(); ++i) {
      if (imports_[rank] == nullptr) {
        pointers[rank].push_back(call.buffers[i].pointer);
        continue;
      }
      SharedAddress address;
      if (payloads[rank].size() != call.buffers.size() * sizeof(address)) {
        return Failure{Fault::kInternal,
                       "EP rank " + board_->link().NameOf(static_cast<int>(rank)) +
                           " sent a card of another layout; is its moeprof the same?"};
      }
      std::memcpy(&address, payloads[rank].data() + i * sizeof(address), sizeof(address));
      auto found = imports_[rank]->Find(board_->link(), address, deadline);
      if (auto* failure = std::get_if<Failure>(&found)) return *failure;
      pointers[rank].push_back(std::get<void*>(found));
    }
  }
  return pointers;
}

Outcome ProcessExchange::Trouble() const {
  if (auto failure = board_->Failed()) return failure;
  const int gone = board_->FindGone();
  if (gone < 0) return std::nullopt;
  return Failure{Fault::kAborted, board_->GoneText(gone)};
}

}  // namespace moeprof::gpu
