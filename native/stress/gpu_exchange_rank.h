// Question: how does one rank of a test run the three exchanges on its GPU?
//
// A rank has a stream, buffers, and a seat in a LocalExchange; several ranks may share a GPU. Right
// after each operation its inputs are overwritten and its results moved away, on the same stream:
// a peer that reads or writes too late is found out, as when XLA gives a buffer to somebody else.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gpu/exchange/moe_dispatch_launch.h"
#include "gpu/meeting/local_exchange.h"
#include "stress/gpu_exchange_case.h"

namespace moeprof::stress {

// Of the kernels of all three operations, on the current device.
cudaError_t LoadKernels();

struct DeviceBytes {
  void* data = nullptr;
  size_t size = 0;
};

class GpuRank {
 public:
  // Room for buffers of `most_bytes` each.
  GpuRank(std::shared_ptr<gpu::LocalExchange> exchange, int rank, size_t most_bytes);
  ~GpuRank();
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  // Makes the rank's device current for this thread.
  void Enter() const;

  // One round: dispatch, combine and cached dispatch, with delays of up to `delay_us` in between.
  // Returns the complaint, empty where all went well. Does not wait for the GPU.
  std::string Launch(const Case& round, const Inputs& inputs, int blocks, int delay_us);

  // Waits for the round. Returns the complaint.
  std::string Wait(std::chrono::milliseconds limit);

  // What the round left in the rank's memory.
  Results Fetch(const Case& round);
  Plan FetchPlan(const Case& round);

  // What a kernel reported, if it did.
  std::string TakeFault() const;

  // For measurements: the operations alone, on whatever the buffers hold.
  std::string Upload(const Case& round, const Inputs& inputs);
  std::string Dispatch(const Case& round, int blocks);
  std::string Combine(const Case& round, int blocks);
  std::string CachedDispatch(const Case& round, int blocks);
  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }
  const void* x() const { return x_; }
  void* recv_x() const { return recv_x_; }

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // Takes part in the next meeting and then launches nothing.
  std::string MeetOnly(const Case& round);

 private:
  gpu::ExchangeCall CallFor(const gpu::Met& met) const;
  gpu::PeerCall DispatchCall(const Case& round) const;
  void Delay(int delay_us, uint64_t seed);
  void* Allocate(size_t bytes);
  void Keep(int slot, void* from, size_t bytes);

  const std::shared_ptr<gpu::LocalExchange> exchange_;
  const int rank_, device_;
  const size_t most_bytes_;
  std::chrono::milliseconds timeout_{20000};
  cudaStream_t stream_ = nullptr;
  std::vector<void*> allocated_;
  void *x_, *scales_, *topk_idx_, *topk_weights_, *combine_x_, *combine_weights_, *cached_x_;
  void *recv_x_, *recv_scales_, *recv_topk_idx_, *recv_topk_weights_, *rank_prefix_,
      *channel_prefix_, *recv_channel_prefix_, *recv_src_idx_, *in_rank_, *send_head_;
  void *combined_x_, *combined_weights_;
  std::vector<DeviceBytes> kept_;
};

}  // namespace moeprof::stress
