#include "gpu/exchange_reset.h"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "gpu/exchange_fault.h"
#include "gpu/local_exchange.h"

void MoeprofGpuReset() { moeprof::gpu::ForgetLocalExchanges(); }

int MoeprofGpuExchangeFault(char* text, int size) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return 0;
  for (int device = 0; device < devices; ++device) {
    const moeprof::Outcome fault = moeprof::gpu::TakeExchangeFault(device, "dispatch or combine");
    if (!fault) continue;
    if (size > 0) std::snprintf(text, static_cast<size_t>(size), "%s", fault->text.c_str());
    return static_cast<int>(fault->text.size());
  }
  return 0;
}
