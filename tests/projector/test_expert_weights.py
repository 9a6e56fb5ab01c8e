"""Routed experts, what tensor parallelism splits, and the rest have divisors of their own.

Hidden 4096, 64 gated experts of 1536 in each of 32 layers: 3 · 4096 · 1536 · 64 · 32 weights.
"""

from __future__ import annotations

import pytest

from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import Strategy

MODEL = ModelSpec(
    layers=32,
    hidden=4096,
    heads=32,
    attention=GqaSpec(8, 128),
    experts=64,
    top_k=8,
    moe_ffn=1536,
    vocab=32000,
    shared_experts=0,
)
BFLOAT16_BYTES = 2


def weights(**plan: int) -> dict[str, int]:
    """Weights of each group on one GPU of Megatron-LM."""
    setting = Setting(
        model=MODEL,
        plan=ParallelPlan(**plan),
        strategy=Strategy("sparse-gmm"),
        hardware=load_hardware("h100_sxm"),
        framework="megatron",
    )
    rows = project(setting).worst.args
    return {
        row.name.removeprefix("weights, "): int(row.size_bytes or 0) // BFLOAT16_BYTES
        for row in rows
        if row.name.startswith("weights, ")
    }


def test_experts_are_divided_by_expert_parallelism():
    spread = weights(data=8, expert=8)
    assert spread["routed experts"] == 4_831_838_208
    assert spread["routed experts"] * BFLOAT16_BYTES / 2**30 == 9.0


def test_without_it_there_are_eight_times_as_many_and_nothing_else_changes():
    spread, whole = weights(data=8, expert=8), weights(data=8)
    assert whole["routed experts"] == 8 * spread["routed experts"]
    assert whole["routed experts"] * BFLOAT16_BYTES / 2**30 == 72.0
    others = [name for name in whole if name != "routed experts"]
    assert others
    assert all(whole[name] == spread[name] for name in others)


@pytest.mark.parametrize(("expert_tensor", "share"), [(1, 1), (2, 2)])
def test_tensor_parallelism_splits_experts_where_it_is_said_to(expert_tensor, share):
    both = weights(data=8, expert=8, tensor=2, expert_tensor=expert_tensor)
    assert both["routed experts"] == 4_831_838_208 // share
    assert both["split over TP"] == weights(data=8, expert=8)["split over TP"] // 2
