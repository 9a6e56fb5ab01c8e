"""Question: which model, plan and batches do the strategies meet on in `ab.py`?

Sized so that the routed experts dominate a step (of 79 M multiply-adds of a token in a layer's
matrices 69 M are theirs) and every strategy trains it on two GPUs of 80 GB, or on one. The experts
are spread over all devices, which is the whole plan.
"""

from __future__ import annotations

from typing import Any

STRATEGIES = (
    "sparse-gmm-deepep",
    "dense-cf1.25",
    "dense-cf2",
    "sparse-gmm",
    "dense-cf4",
    "sparse-ragged-dot",
)
MODEL = {
    "layers": 8,
    "dense_layers": 1,
    "hidden": 2048,
    "heads": 16,
    "experts": 64,
    "top_k": 8,
    "moe_ffn": 1408,
    "dense_ffn": 8192,
    "vocab": 32768,
    "compute_dtype": "bfloat16",
    "weight_dtype": "bfloat16",
}
MLA = {"q_lora_rank": 768, "kv_lora_rank": 256, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
SEQUENCE = 4096
COMMON_PDBS = 2
# More would not fit: where XLA has no kernel, ragged_dot multiplies every row by every expert.
FEWER_PDBS = {"sparse-ragged-dot": 1}
POOL_BYTES = int(72.5 * 2**30)
"""What JAX's pool may take of an H100's 79.2 GiB; a larger card is held to it too."""
SMOKE_MODEL = {
    **MODEL,
    "layers": 2,
    "hidden": 32,
    "heads": 2,
    "experts": 4,
    "top_k": 2,
    "moe_ffn": 16,
    "dense_ffn": 32,
    "vocab": 256,
    "compute_dtype": "float32",
    "weight_dtype": "float32",
}
SMOKE_MLA = {"q_lora_rank": 8, "kv_lora_rank": 8, "nope_dim": 8, "rope_dim": 8, "value_dim": 8}
SMOKE_SEQUENCE = 32


def model_of(*, smoke: bool) -> Any:
    """The model as a `ModelSpec`."""
    from moeprof.specs.model import MlaSpec, ModelSpec

    values, attention = (SMOKE_MODEL, SMOKE_MLA) if smoke else (MODEL, MLA)
    return ModelSpec(attention=MlaSpec(**attention), **values)  # type: ignore[arg-type]


def projected_largest(strategy: str, devices: int) -> int:
    """The largest pdbs whose step fits the pool by `moeprof memory`'s closed form; 0: none does."""
    from moeprof.projector.memory import project
    from moeprof.projector.setting import Precision, Setting
    from moeprof.specs.hardware import load_hardware
    from moeprof.specs.plan import ParallelPlan
    from moeprof.specs.remat import FULL
    from moeprof.specs.strategy import parse_strategy

    def bytes_at(pdbs: int) -> int:
        setting = Setting(
            model_of(smoke=False),
            ParallelPlan(expert=devices, remat=FULL),
            parse_strategy(strategy),
            load_hardware("h100_sxm"),
            SEQUENCE,
            pdbs,
            framework="bundled",
            precision=Precision(),
        )
        memory = project(setting)
        return (memory.args_bytes or 0) + (memory.temp_bytes or 0)

    pdbs = 0
    while bytes_at(pdbs + 1) <= POOL_BYTES:
        pdbs += 1
    return pdbs
