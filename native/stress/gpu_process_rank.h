// Question: what does a process do as one rank of an exchange under test, and what must it see?
//
// A rank is a process forked before CUDA is touched. What it expects and does not find ends it with
// status 1 and a line that names the rank; InProcesses then ends the program.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpu/processes/process_exchange.h"

namespace moeprof::gpu {

constexpr std::chrono::milliseconds kLong{30000};
constexpr size_t kFlagBytes = 4096;

void Expect(bool holds, const std::string& what);
void Check(cudaError_t error, const char* what);

// Words that depend on a seed and their place, and a look whether they are there.
void Fill(void* words, size_t bytes, uint32_t seed);
void ExpectPattern(const void* words, size_t bytes, uint32_t seed, const std::string& what);

// Memory as XLA takes it: physical memory that can be exported, mapped at an address of its own.
struct Mapped {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};

Mapped MapNew(size_t bytes, int device);
void Unmap(const Mapped& mapped);

// Takes one of the visible GPUs, whose number goes to `device`.
std::unique_ptr<ProcessExchange> Join(const std::string& token, int rank, int ranks, int& device);

ProcessExchange::Pointers MustMeet(ProcessExchange& exchange, const PeerCall& call);

// Nobody goes on before all have come.
void Barrier(ProcessExchange& exchange);

// Reads every peer's words, then writes others into every peer's second half.
void ReadAndWrite(ProcessExchange& exchange, void* words, size_t bytes, uint32_t round);

// Runs body(token, rank) in a process per rank and ends this program unless all end well: the rank
// `killed`, if there is one, by SIGKILL.
void InProcesses(int ranks, const std::function<void(const std::string&, int)>& body,
                 int killed = -1);

}  // namespace moeprof::gpu
