"""MoE kernels for JAX: grouped GEMM, dispatch and combine.

The names and signatures are Primus-Turbo's; `grouped_gemm_variable_k` is ours alone. Where that
library is installed on ROCm, these are its functions, grouped_gemm with an adapter in front;
everywhere else they are ours (`provider.describe` says which, and why).
"""

from moeprof.kernels.provider import uses_primus_turbo

if uses_primus_turbo():
    from primus_turbo.jax.lax.moe import (
        Config,
        get_ep_size,
        is_internode,
        moe_combine,
        moe_dispatch,
        reset_runtime,
        set_ep_group,
        setup,
    )

    from moeprof.kernels.products.primus_turbo import (
        compute_group_offs,
        grouped_gemm,
        grouped_gemm_variable_k,
    )
else:
    from moeprof.kernels.exchange.moe import moe_combine, moe_dispatch
    from moeprof.kernels.products.grouped_product import (
        compute_group_offs,
        grouped_gemm,
        grouped_gemm_variable_k,
    )
    from moeprof.kernels.runtime.config import Config
    from moeprof.kernels.runtime.expert_parallel import (
        get_ep_size,
        is_internode,
        reset_runtime,
        set_ep_group,
        setup,
    )

__all__ = [
    "Config",
    "compute_group_offs",
    "get_ep_size",
    "grouped_gemm",
    "grouped_gemm_variable_k",
    "is_internode",
    "moe_combine",
    "moe_dispatch",
    "reset_runtime",
    "set_ep_group",
    "setup",
]
