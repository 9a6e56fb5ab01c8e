#include "gpu/meeting/exchange_reset.h"

#include "gpu/meeting/local_exchange.h"

void MoeprofGpuReset() { moeprof::gpu::ForgetLocalExchanges(); }
