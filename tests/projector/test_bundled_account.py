"""The bundled model's step in closed form against XLA's own layout of it for H100.

Sizes are XLA's (jax 0.10.2, CUDA plugin, no GPU): hidden 2048, 16 heads of 128 with 4 for keys, 32
experts, top-4, expert width 1024, one dense layer of 4096 and three MoE layers, vocabulary 32000,
4096 positions, FSDP 2 and EP 4.
"""

import pytest

from moeprof.projector.memory import project
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

MIB = 2**20


def step(strategy: str, pdbs: int = 1, remat: str = "full", dtype: str = "bfloat16") -> Setting:
    model = ModelSpec(
        layers=4,
        dense_layers=1,
        dense_ffn=4096,
        hidden=2048,
        heads=16,
        attention=GqaSpec(kv_heads=4, head_dim=128),
        experts=32,
        top_k=4,
        moe_ffn=1024,
        vocab=32000,
        compute_dtype="bfloat16",
        weight_dtype=dtype,
    )
    return Setting(
        model,
        ParallelPlan(fsdp=2, expert=4, remat=Remat(remat)),
        parse_strategy(strategy),
        load_hardware("h100_sxm"),
        pdbs=pdbs,
        world="bundled",
        precision=Precision(weights=dtype, first_moment=dtype, second_moment=dtype),
    )


@pytest.mark.parametrize(
    ("setting", "args", "temp_mib"),
    [
        (step("dense-cf1.25"), 616_051_080, 2338.9),
        (step("dense-cf4"), 616_051_080, 3533.9),
        (step("sparse-gmm"), 616_051_080, 3057.0),
        (step("sparse-gmm", pdbs=4), 616_100_244, 9988.2),
        (step("sparse-gmm", dtype="float32"), 1_232_085_384, 3457.7),
        (step("sparse-gmm-deepep"), 616_051_080, 3096.4),
        (step("sparse-gmm", remat="none"), 616_051_080, 7264.8),
        (step("dense-cf1.25", remat="none"), 616_051_080, 5882.4),
        (step("sparse-gmm-deepep", remat="none"), 616_051_080, 9198.5),
    ],
    ids=lambda value: value.strategy.name if isinstance(value, Setting) else None,
)
def test_what_the_compiler_lays_out(setting: Setting, args: int, temp_mib: float) -> None:
    found = project(setting)
    assert found.args_bytes == args
    assert found.temp_bytes is not None
    assert found.temp_bytes / MIB == pytest.approx(temp_mib, rel=0.05)
