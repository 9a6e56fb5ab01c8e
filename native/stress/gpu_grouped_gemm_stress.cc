// Question: is any grouped product of this GPU wrong, whichever kernel it goes to?
//
//   gpu_grouped_gemm_stress [--rounds N] [--seconds S] [--seed N] [--longest N]
//
// A small program for a sanitizer to watch: no framework, every buffer its own allocation of
// exactly its size. Every round draws lengths, sides up to --longest, dtypes and layouts, runs the
// forward product and dB by every kernel that takes them, and compares bit for bit with sums on the
// host. Unsound lengths must be reported and leave NaN. Ends with "ok", or after the first wrong
// rounds with what differs.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gpu/faults/fault_report.h"
#include "gpu/grouped_gemm/launch.h"
#include "stress/gpu_grouped_gemm_case.h"

namespace moeprof::stress {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostWrong = 4;

struct Options {
  int64_t rounds = 200, seconds = 120, seed = 1, longest = 300;
};

void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s: %s, %s\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(1);
}

struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory Allocate(size_t bytes, int fill) {
  void* memory = nullptr;
  if (bytes == 0) return nullptr;
  Must(cudaMalloc(&memory, bytes), "cudaMalloc");
  Must(cudaMemset(memory, fill, bytes), "cudaMemset");
  return Memory(memory);
}

Memory Upload(const std::vector<uint8_t>& bytes) {
  Memory memory = Allocate(bytes.size(), 0);
  if (!bytes.empty()) {
    Must(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "upload");
  }
  return memory;
}

std::vector<uint8_t> Integers(const std::vector<int64_t>& values, bool wide) {
  std::vector<uint8_t> bytes(values.size() * (wide ? 8 : 4));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<int32_t>(values[i]);
    if (wide) std::memcpy(bytes.data() + 8 * i, &values[i], 8);
    if (!wide) std::memcpy(bytes.data() + 4 * i, &narrow, 4);
  }
  return bytes;
}

std::vector<int64_t> Sums(const std::vector<int64_t>& lens) {
  std::vector<int64_t> sums{0};
  for (int64_t length : lens) sums.push_back(sums.back() + length);
  return sums;
}

// Where kernels report; what they have reported so far counts no more.
gpu::FaultSink FreshSink() {
  auto sink = gpu::SinkUnlessFaulty();
  if (std::holds_alternative<Failure>(sink)) sink = gpu::SinkOfCurrentDevice();
  if (auto* failure = std::get_if<Failure>(&sink)) {
    std::printf("FAILED %s\n", failure->text.c_str());
    std::exit(1);
  }
  return std::get<gpu::FaultSink>(sink);
}

// "" where kernels reported nothing.
std::string ReportedFault() {
  const auto sink = gpu::SinkUnlessFaulty();
  const auto* const fault = std::get_if<Failure>(&sink);
  return fault == nullptr ? "" : fault->text;
}

std::string Differences(const std::vector<float>& found, const std::vector<float>& expected,
                        int64_t cols) {
  int64_t wrong = 0, first = -1;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (found[i] == expected[i]) continue;
    if (wrong++ == 0) first = static_cast<int64_t>(i);
  }
  if (wrong == 0) return "";
  return std::to_string(wrong) + " of " + std::to_string(expected.size()) +
         " wrong, first at row " + std::to_string(first / cols) + ", column " +
         std::to_string(first % cols) + ": expected " + std::to_string(expected[first]) +
         ", found " + std::to_string(found[first]);
}

std::string NotAllNaN(const std::vector<float>& found) {
  for (float value : found) {
    if (!std::isnan(value)) return "expected NaN alone after unsound lengths, found a number";
  }
  return "";
}

// One round on the device.
class Products {
 public:
  explicit Products(const GemmCase& round)
      : round_(round),
        operands_(DrawGemmOperands(round)),
        a_(Upload(Pack(operands_.a, round.type))),
        b_(Upload(Pack(operands_.b, round.type))),
        right_(Upload(Pack(operands_.right, round.type))),
        lens_(Upload(Integers(round.lens, round.wide))),
        offsets_(round.with_offsets ? Upload(Integers(Sums(round.lens), round.wide)) : nullptr),
        // All ones: a plan that nobody wrote would be seen.
        scratch_(Allocate(gpu::GroupedGemmScratchBytes(round.lens.size()), 0xFF)) {
    if (round.is_unsound) return;
    forward_ = ForwardOf(round, operands_);
    variable_k_ = VariableKOf(round, operands_);
  }

  std::string Forward(const gpu::GemmChoice& choice) {
    const gpu::GpuGroupedGemm op{Type(),      a_.get(), b_.get(), nullptr,       Lengths(),
                                 round_.rows, round_.k, round_.n, round_.trans_b};
    return Run(
        round_.rows * round_.n, round_.type,
        [&](void* out) {
          gpu::GpuGroupedGemm there = op;
          there.out = out;
          return gpu::LaunchGroupedGemm(nullptr, there, scratch_.get(),
                                        {FreshSink(), gpu::GpuOp::kGroupedGemm, -1}, choice);
        },
        forward_);
  }

  std::string VariableK(const gpu::GemmChoice& choice) {
    const bool is_float = round_.float_out && round_.type != Element::kFloat32;
    const gpu::GpuVariableKGemm op{Type(),      a_.get(), right_.get(), nullptr, Lengths(),
                                   round_.rows, round_.k, round_.n,     is_float};
    const auto groups = static_cast<int64_t>(round_.lens.size());
    return Run(
        groups * round_.k * round_.n, round_.float_out ? Element::kFloat32 : round_.type,
        [&](void* out) {
          gpu::GpuVariableKGemm there = op;
          there.out = out;
          return gpu::LaunchVariableKGemm(nullptr, there, scratch_.get(),
                                          {FreshSink(), gpu::GpuOp::kGroupedGemmVariableK, -1},
                                          choice);
        },
        variable_k_);
  }

 private:
  gpu::ElementType Type() const { return static_cast<gpu::ElementType>(round_.type); }
  gpu::GroupLengths Lengths() const {
    return {lens_.get(), offsets_.get(), round_.wide, round_.wide,
            static_cast<int32_t>(round_.lens.size())};
  }

  template <typename Launch>
  std::string Run(int64_t count, Element type, const Launch& launch,
                  const std::vector<float>& expected) {
    std::vector<uint8_t> bytes(count * (type == Element::kFloat32 ? 4 : 2));
    // Memory that nobody writes must not look right: all ones are a NaN, and NaN is expected where
    // the lengths are not sound.
    const Memory out = Allocate(bytes.size(), round_.is_unsound ? 0 : 0xFF);
    std::string complaint = launch(out.get());
    if (!complaint.empty()) return complaint;
    Must(cudaDeviceSynchronize(), round_.Text().c_str());
    Must(cudaMemcpy(bytes.data(), out.get(), bytes.size(), cudaMemcpyDeviceToHost), "download");
    const std::vector<float> found = Unpack(bytes, type);
    const std::string fault = ReportedFault();
    if (fault.empty() == round_.is_unsound) {
      return std::string("expected ") + (round_.is_unsound ? "a" : "no") + " fault, found \"" +
             fault + "\"";
    }
    return round_.is_unsound ? NotAllNaN(found) : Differences(found, expected, round_.n);
  }

  const GemmCase& round_;
  GemmOperands operands_;
  std::vector<float> forward_, variable_k_;  // expected; empty where the lengths are unsound
  Memory a_, b_, right_, lens_, offsets_, scratch_;
};

std::string TextOf(const gpu::GemmChoice& choice) {
  return "tile " + std::to_string(choice.tile_cols) + ", pairs " + std::to_string(choice.pairs) +
         ", blocks " + std::to_string(choice.max_blocks);
}

int Run(const Options& options) {
  const gpu::GemmChoice forward[] = {
      {64, 0, 0}, {128, 1, 0}, {256, 1, 0}, {256, 2, 0}, {256, 2, 2}};
  const gpu::GemmChoice variable_k[] = {{64, 0, 0}, {256, 1, 0}, {256, 2, 0}, {256, 2, 2}};
  const auto start = Clock::now();
  int64_t rounds = 0, products = 0;
  int wrong = 0;
  const auto count = [&](const char* name, const GemmCase& round, const gpu::GemmChoice& choice,
                         const std::string& complaint) {
    ++products;
    if (complaint.empty()) return;
    ++wrong;
    std::printf("WRONG %s, %s, %s: %s\n", name, round.Text().c_str(), TextOf(choice).c_str(),
                complaint.c_str());
    std::fflush(stdout);
  };
  for (; rounds < options.rounds && wrong < kMostWrong &&
         Clock::now() - start < std::chrono::seconds(options.seconds);
       ++rounds) {
    const GemmCase round = RandomGemmCase(options.seed * 1000003 + rounds, options.longest);
    Products on_device(round);
    for (const auto& choice : forward) count("forward", round, choice, on_device.Forward(choice));
    for (const auto& choice : variable_k) count("dB", round, choice, on_device.VariableK(choice));
  }
  const bool is_right = wrong == 0 && rounds > 0;
  std::printf("%s: %ld of %ld rounds, %ld products, %d wrong, %.1f s\n", is_right ? "ok" : "FAILED",
              static_cast<long>(rounds), static_cast<long>(options.rounds),
              static_cast<long>(products), wrong,
              std::chrono::duration<double>(Clock::now() - start).count());
  return is_right ? 0 : 1;
}

int64_t* NumberFor(Options& options, const std::string& name) {
  if (name == "--rounds") return &options.rounds;
  if (name == "--seconds") return &options.seconds;
  if (name == "--seed") return &options.seed;
  if (name == "--longest") return &options.longest;
  return nullptr;
}

}  // namespace
}  // namespace moeprof::stress

int main(int argc, char** argv) {
  moeprof::stress::Options options;
  for (int i = 1; i < argc; i += 2) {
    int64_t* const number = moeprof::stress::NumberFor(options, argv[i]);
    if (number == nullptr || i + 1 == argc ||
        std::atoll(argv[i + 1]) < 8 * (number == &options.longest)) {
      std::fprintf(
          stderr,
          "%s: expected --rounds, --seconds, --seed or --longest (at least 8) with a number\n",
          argv[i]);
      return 2;
    }
    *number = std::atoll(argv[i + 1]);
  }
  return moeprof::stress::Run(options);
}
