// Question: how is a function marked that the host and the kernels share?
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define MOEPROF_BOTH __host__ __device__ __forceinline__
#else
#define MOEPROF_BOTH inline
#endif
