#include "gpu/exchange_reset.h"

#include "gpu/local_exchange.h"

void MoeprofGpuReset() { moeprof::gpu::ForgetLocalExchanges(); }
