#include <cstdio>
#include <cstdlib>
#include <thread>
#include <variant>

#include "gpu/exchange/moe_cached_dispatch_launch.h"
#include "gpu/exchange/moe_combine_launch.h"
#include "gpu/runtime/on_device.h"
#include "stress/gpu_exchange_rank.h"

namespace moeprof::stress {
namespace {

using gpu::ExchangeCall;
using gpu::LocalExchange;
using gpu::Met;

constexpr int kGarbage = 0xA5;
enum Kept {
  kRecvX,
  kRecvScales,
  kRecvTopkIdx,
  kRecvTopkWeights,
  kRecvChannelPrefix,
  kRecvSrcIdx,
  kCachedRecvX,
  kKept,
};

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorName(error));
  std::fflush(stdout);
  std::_Exit(2);
}

__global__ void Spin(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

template <typename T>
std::vector<T> Download(const void* from, size_t count) {
  std::vector<T> values(count);
  if (count > 0)
    Check(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDefault), "copy");
  return values;
}

gpu::PeerBuffer Shown(void* data, size_t bytes) { return {bytes == 0 ? nullptr : data, bytes}; }

}  // namespace

cudaError_t LoadKernels() {
  for (const auto load :
       {gpu::LoadDispatchKernels, gpu::LoadCachedDispatchKernel, gpu::LoadCombineKernels}) {
    if (const cudaError_t error = load(); error != cudaSuccess) return error;
  }
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Spin);
}

GpuRank::GpuRank(std::shared_ptr<LocalExchange> exchange, int rank, size_t most_bytes)
    : exchange_(std::move(exchange)),
      rank_(rank),
      device_(static_cast<int>(exchange_->devices()[rank])),
      most_bytes_(most_bytes) {
  Enter();
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  for (void** buffer : {&x_, &scales_, &topk_idx_, &topk_weights_, &combine_x_, &combine_weights_,
                        &cached_x_, &recv_x_, &recv_scales_, &recv_topk_idx_, &recv_topk_weights_,
                        &rank_prefix_, &channel_prefix_, &recv_channel_prefix_, &recv_src_idx_,
                        &in_rank_, &send_head_, &combined_x_, &combined_weights_}) {
    *buffer = Allocate(most_bytes);
  }
  for (int i = 0; i < kKept; ++i) kept_.push_back({Allocate(most_bytes), 0});
}

GpuRank::~GpuRank() {
  Enter();
  cudaStreamSynchronize(stream_);
  for (void* memory : allocated_) cudaFree(memory);
  cudaStreamDestroy(stream_);
}

void GpuRank::Enter() const { Check(cudaSetDevice(device_), "cudaSetDevice"); }

void* GpuRank::Allocate(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes), "cudaMalloc");
  allocated_.push_back(memory);
  return memory;
}

void GpuRank::Delay(int delay_us, uint64_t seed) {
  if (delay_us <= 0) return;
  seed = (seed + static_cast<uint64_t>(rank_) * 7919) * 0x9E3779B97F4A7C15u;
  const uint64_t microseconds = (seed >> 40) % static_cast<uint64_t>(delay_us);
  if ((seed >> 20) % 2 == 0) {
    Spin<<<1, 1, 0, stream_>>>(microseconds * 1000);
    Check(cudaGetLastError(), "delay");
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
}

void GpuRank::Keep(int slot, void* from, size_t bytes) {
  kept_[slot].size = bytes;
  if (bytes == 0) return;
  Check(cudaMemcpyAsync(kept_[slot].data, from, bytes, cudaMemcpyDeviceToDevice, stream_), "keep");
  Check(cudaMemsetAsync(from, kGarbage, bytes, stream_), "overwrite");
}

ExchangeCall GpuRank::CallFor(const Met& met) const {
  ExchangeCall call{};
  for (size_t r = 0; r < exchange_->flags().size(); ++r) call.flags[r] = exchange_->flags()[r];
  call.rank = rank_;
  call.ranks = static_cast<int32_t>(exchange_->devices().size());
  call.number = met.number;
  call.timeout_ns = static_cast<uint64_t>(timeout_.count()) * 1000000;
  call.faults = std::get<gpu::FaultSink>(gpu::SinkOfCurrentDevice());
  return call;
}

std::string GpuRank::TakeFault() const {
  const gpu::OnDevice here(device_);
  const auto sink = gpu::SinkUnlessFaulty();
  const auto* const fault = std::get_if<Failure>(&sink);
  return fault == nullptr ? "" : fault->text;
}

gpu::PeerCall GpuRank::DispatchCall(const Case& round) const {
  const size_t rows = static_cast<size_t>(round.rows());
  const size_t slots = rows * round.top_k * 4;
  return {"dispatch",
          {round.tokens, round.row_bytes, round.scales, round.top_k, round.channels},
          {Shown(recv_x_, rows * round.row_bytes), Shown(recv_scales_, rows * round.scales * 4),
           Shown(recv_topk_idx_, slots), Shown(recv_topk_weights_, slots),
           Shown(recv_channel_prefix_, size_t{4} * round.ranks * round.channels),
           Shown(recv_src_idx_, rows * 4)}};
}

std::string GpuRank::MeetOnly(const Case& round) {
  auto met = exchange_->Meet(rank_, DispatchCall(round), timeout_);
  auto* failure = std::get_if<Failure>(&met);
  return failure == nullptr ? "" : failure->text;
}

std::string GpuRank::Dispatch(const Case& round, int blocks) {
  auto met = exchange_->Meet(rank_, DispatchCall(round), timeout_);
  if (auto* failure = std::get_if<Failure>(&met)) return failure->text;
  const auto& pointers = std::get<Met>(met).pointers;
  gpu::DispatchArgs args{};
  args.call = CallFor(std::get<Met>(met));
  args.shape = {round.tokens, round.row_bytes / 16,   round.scales,
                round.top_k,  round.experts_per_rank, round.channels};
  args.x = static_cast<const uint4*>(x_);
  args.scales = static_cast<const float*>(scales_);
  args.topk_idx = static_cast<const int32_t*>(topk_idx_);
  args.topk_weights = static_cast<const float*>(topk_weights_);
  args.in_rank = static_cast<bool*>(in_rank_);
  args.channel_prefix = static_cast<int32_t*>(channel_prefix_);
  args.send_head = static_cast<int32_t*>(send_head_);
  args.rank_prefix = static_cast<int32_t*>(rank_prefix_);
  for (size_t r = 0; r < pointers.size(); ++r) {
    args.of_rank[r] = {
        static_cast<uint4*>(pointers[r][0]),   static_cast<float*>(pointers[r][1]),
        static_cast<int32_t*>(pointers[r][2]), static_cast<float*>(pointers[r][3]),
        static_cast<int32_t*>(pointers[r][4]), static_cast<int32_t*>(pointers[r][5])};
  }
  args.unused_bits = round.poison ? 0xFFC1FFC1u : 0;
  Check(gpu::LaunchDispatch(stream_, args, blocks), "LaunchDispatch");
  return "";
}

std::string GpuRank::Combine(const Case& round, int blocks) {
  const size_t rows = static_cast<size_t>(round.rows());
  auto met = exchange_->Meet(rank_,
                             {"combine",
                              {round.tokens, round.row_bytes, round.top_k, round.channels},
                              {Shown(combine_x_, rows * round.row_bytes),
                               Shown(combine_weights_, rows * round.top_k * 4)}},
                             timeout_);
  if (auto* failure = std::get_if<Failure>(&met)) return failure->text;
  const auto& pointers = std::get<Met>(met).pointers;
  gpu::CombineArgs args{};
  args.call = CallFor(std::get<Met>(met));
  args.type = round.type == Type::kFloat32    ? gpu::ElementType::kFloat32
              : round.type == Type::kBFloat16 ? gpu::ElementType::kBFloat16
                                              : gpu::ElementType::kFloat16;
  args.tokens = round.tokens;
  args.words = round.row_bytes / 16;
  args.top_k = round.top_k;
  args.channels = round.channels;
  for (size_t r = 0; r < pointers.size(); ++r) {
    args.x[r] = static_cast<const uint4*>(pointers[r][0]);
    args.topk_weights[r] = static_cast<const float*>(pointers[r][1]);
  }
  args.rank_prefix = static_cast<const int32_t*>(rank_prefix_);
  args.channel_prefix = static_cast<const int32_t*>(channel_prefix_);
  args.in_rank = static_cast<const bool*>(in_rank_);
  args.send_head = static_cast<const int32_t*>(send_head_);
  args.combined_x = static_cast<uint4*>(combined_x_);
  args.combined_weights = static_cast<float*>(combined_weights_);
  Check(gpu::LaunchCombine(stream_, args, blocks), "LaunchCombine");
  return "";
}

std::string GpuRank::CachedDispatch(const Case& round, int blocks) {
  auto met = exchange_->Meet(rank_,
                             {"cached dispatch",
                              {round.tokens, round.row_bytes},
                              {Shown(cached_x_, size_t{1} * round.tokens * round.row_bytes)}},
                             timeout_);
  if (auto* failure = std::get_if<Failure>(&met)) return failure->text;
  const auto& pointers = std::get<Met>(met).pointers;
  gpu::CachedDispatchArgs args{};
  args.call = CallFor(std::get<Met>(met));
  args.tokens = round.tokens;
  args.words = round.row_bytes / 16;
  for (size_t r = 0; r < pointers.size(); ++r) {
    args.x[r] = static_cast<const uint4*>(pointers[r][0]);
  }
  args.rank_prefix = static_cast<const int32_t*>(rank_prefix_);
  // The dispatch's numbers were moved away and their place overwritten.
  const bool is_kept = kept_[kRecvSrcIdx].size > 0;
  args.src_idx = static_cast<const int32_t*>(is_kept ? kept_[kRecvSrcIdx].data : recv_src_idx_);
  args.recv_x = static_cast<uint4*>(recv_x_);
  args.unused_bits = round.poison ? 0xFFC1FFC1u : 0;
  Check(gpu::LaunchCachedDispatch(stream_, args, blocks), "LaunchCachedDispatch");
  return "";
}

std::string GpuRank::Upload(const Case& round, const Inputs& in) {
  const auto put = [&](void* to, const auto& values) {
    const size_t bytes = values.size() * sizeof(values[0]);
    if (bytes > most_bytes_) return false;
    if (bytes > 0) {
      Check(cudaMemcpyAsync(to, values.data(), bytes, cudaMemcpyHostToDevice, stream_), "upload");
    }
    return true;
  };
  const bool fits = put(x_, in.x) && put(scales_, in.scales) && put(topk_idx_, in.topk_idx) &&
                    put(topk_weights_, in.topk_weights) && put(combine_x_, in.combine_x) &&
                    put(combine_weights_, in.combine_weights) && put(cached_x_, in.cached_x);
  return fits ? "" : "round does not fit the buffers: " + round.Text();
}

std::string GpuRank::Launch(const Case& round, const Inputs& in, int blocks, int delay_us) {
  Enter();
  const size_t rows = static_cast<size_t>(round.rows());
  const size_t row_bytes = static_cast<size_t>(round.row_bytes);
  const size_t slots = rows * round.top_k * 4;
  if (auto complaint = Upload(round, in); !complaint.empty()) return complaint;
  for (void* result : {recv_x_, recv_scales_, recv_topk_idx_, recv_topk_weights_, rank_prefix_,
                       channel_prefix_, recv_channel_prefix_, recv_src_idx_, in_rank_, send_head_,
                       combined_x_, combined_weights_}) {
    Check(cudaMemsetAsync(result, kGarbage, most_bytes_, stream_), "overwrite");
  }
  const auto overwrite = [&](void* input, size_t bytes) {
    if (bytes > 0) Check(cudaMemsetAsync(input, kGarbage, bytes, stream_), "overwrite");
  };

  Delay(delay_us, round.seed * 3);
  if (auto complaint = Dispatch(round, blocks); !complaint.empty()) return complaint;
  overwrite(x_, in.x.size());
  overwrite(topk_idx_, in.topk_idx.size() * 4);
  Keep(kRecvX, recv_x_, rows * row_bytes);
  Keep(kRecvScales, recv_scales_, rows * round.scales * 4);
  Keep(kRecvTopkIdx, recv_topk_idx_, slots);
  Keep(kRecvTopkWeights, recv_topk_weights_, slots);
  Keep(kRecvChannelPrefix, recv_channel_prefix_, size_t{4} * round.ranks * round.channels);
  Keep(kRecvSrcIdx, recv_src_idx_, rows * 4);

  Delay(delay_us, round.seed * 3 + 1);
  if (auto complaint = Combine(round, blocks); !complaint.empty()) return complaint;
  overwrite(combine_x_, in.combine_x.size());
  overwrite(combine_weights_, in.combine_weights.size() * 4);

  Delay(delay_us, round.seed * 3 + 2);
  if (auto complaint = CachedDispatch(round, blocks); !complaint.empty()) return complaint;
  overwrite(cached_x_, in.cached_x.size());
  Keep(kCachedRecvX, recv_x_, rows * row_bytes);
  return "";
}

std::string GpuRank::Wait(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaSuccess) return "";
    if (state != cudaErrorNotReady) {
      return std::string("kernels failed: ") + cudaGetErrorName(state) + "; " + TakeFault();
    }
    if (std::chrono::steady_clock::now() > end) return "the GPU is not done in time";
    std::this_thread::yield();
  }
}

Results GpuRank::Fetch(const Case& round) {
  const size_t rows = static_cast<size_t>(round.rows()), tokens = static_cast<size_t>(round.tokens);
  const size_t ranks = static_cast<size_t>(round.ranks), row_bytes = round.row_bytes;
  Results out;
  out.recv_x = Download<uint8_t>(kept_[kRecvX].data, rows * row_bytes);
  out.recv_scales = Download<float>(kept_[kRecvScales].data, rows * round.scales);
  out.recv_topk_idx = Download<int32_t>(kept_[kRecvTopkIdx].data, rows * round.top_k);
  out.recv_topk_weights = Download<float>(kept_[kRecvTopkWeights].data, rows * round.top_k);
  out.rank_prefix = Download<int32_t>(rank_prefix_, ranks * ranks);
  out.recv_channel_prefix =
      Download<int32_t>(kept_[kRecvChannelPrefix].data, ranks * round.channels);
  out.recv_src_idx = Download<int32_t>(kept_[kRecvSrcIdx].data, rows);
  out.combined_x = Download<uint8_t>(combined_x_, tokens * row_bytes);
  out.combined_weights = Download<float>(combined_weights_, tokens * round.top_k);
  out.cached_recv_x = Download<uint8_t>(kept_[kCachedRecvX].data, rows * row_bytes);
  return out;
}

Plan GpuRank::FetchPlan(const Case& round) {
  const size_t rows = static_cast<size_t>(round.rows());
  return {Download<uint8_t>(in_rank_, rows),
          Download<int32_t>(channel_prefix_, static_cast<size_t>(round.ranks) * round.channels),
          Download<int32_t>(send_head_, rows)};
}

}  // namespace moeprof::stress
