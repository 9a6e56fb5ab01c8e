"""MoE kernels for JAX: grouped GEMM, dispatch and combine on the native library."""
