"""Which axes divide which weights, by hand and against the bundled model's own layout."""

import math

import pytest

from moeprof.projector.setting import Degrees
from moeprof.projector.sharding import held_elements, tensor_class
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.parameters import parameters, partition
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset


def degrees(data: int = 1, fsdp: int = 1, expert: int = 1, tensor: int = 1) -> Degrees:
    return Degrees(data, fsdp, expert, tensor, 1, 1, 1, 1, 1, 1, 4096)


def routed(model: ModelSpec, where: Degrees) -> float:
    """Elements of routed experts on one device."""
    experts = [p for p in parameters(model) if tensor_class(p) == "experts"]
    return sum(float(held_elements(p, where)) for p in experts)


def test_expert_parallelism_divides_routed_experts_alone() -> None:
    """32 layers · 64 experts · 3 matrices · 4096 · 1536 = 38,654,705,664.

    (NVIDIA/Megatron-LM#1784)
    """
    model = ModelSpec(
        layers=32,
        hidden=4096,
        heads=32,
        attention=GqaSpec(kv_heads=8, head_dim=128),
        experts=64,
        top_k=2,
        moe_ffn=1536,
        vocab=32000,
        shared_experts=0,
    )
    assert routed(model, degrees(expert=8)) == 4_831_838_208
    assert routed(model, degrees(expert=8)) * 2 / 2**30 == 9.0
    assert routed(model, degrees(expert=1)) * 2 / 2**30 == 72.0


@pytest.mark.parametrize("attention", ["mla", "gqa"])
def test_the_bundled_model_holds_as_much(attention: str) -> None:
    model = load_preset("small", attention)
    for data in (1, 2):
        for fsdp in (1, 2, 3, 4, 8):
            for expert in (1, 2, 4, 8, 16):
                plan = ParallelPlan(data=data, fsdp=fsdp, expert=expert)
                for parameter in parameters(model):
                    splits = partition(parameter, plan)
                    parts = math.prod(plan.degree(axes) for axes in splits)
                    assert held_elements(parameter, degrees(data, fsdp, expert)) * parts == (
                        parameter.size
                    )
