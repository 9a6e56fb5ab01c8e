"""Bytes of weights, master copies and moments, by hand."""

import dataclasses
import math

import numpy as np
import pytest

from moeprof.projector.setting import Degrees, Precision, Setting, degrees_of
from moeprof.projector.state import held_elements, state_rows, tensor_class
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.parameters import Parameter, parameters, partition
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy


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


def setting(optimizer: str = "adamw", framework: str = "maxtext", **formats: object) -> Setting:
    return Setting(
        load_preset("small"),
        ParallelPlan(),
        parse_strategy("sparse-gmm"),
        load_hardware("h100_sxm"),
        optimizer=optimizer,
        framework=framework,
        precision=Precision(**formats),  # type: ignore[arg-type]
    )


def sizes(chosen: Setting, *held: Parameter) -> dict[str, int]:
    return {
        row.name: int(row.size_bytes or 0) for row in state_rows(chosen, degrees_of(chosen), held)
    }


def test_seventy_billion_parameters_in_bfloat16() -> None:
    """70e9 · 2 B = 140.0 GB = 130.4 GiB (huggingface/accelerate#3379)."""
    whole = Parameter(("embedding",), (70_000_000, 1000))
    found = sizes(setting("sgd"), whole)
    assert found == {"weights": 140_000_000_000}
    assert round(found["weights"] / 2**30, 1) == 130.4


def test_bfloat16_weights_with_a_float32_master_and_moments() -> None:
    """2 + 4 + 4 + 4 B per parameter, each a row."""
    formats = {"master": "float32", "first_moment": "float32", "second_moment": "float32"}
    found = sizes(setting(**formats), Parameter(("embedding",), (100, 10)))
    assert found == {
        "weights": 2000,
        "master weights": 4000,
        "first moment": 4000,
        "second moment": 4000,
    }


def test_adafactor_keeps_two_edges_of_a_matrix() -> None:
    """[3, 256, 512]: without its largest 3 · 256, without the second 3 · 512 elements; a norm
    keeps all of its 256."""
    matrix = Parameter(("moe_layers", "mlp", "up"), (3, 256, 512), 256, 1)
    norm = Parameter(("final_norm",), (256,))
    found = sizes(setting("adafactor"), matrix, norm)
    assert found["factored second moment"] == 2 * (3 * 256 + 3 * 512 + 256)
    assert "first moment" not in found


def test_adafactor_keeps_a_small_matrix_whole() -> None:
    small = Parameter(("moe_layers", "router", "gate"), (3, 256, 16), 256, 1)
    assert sizes(setting("adafactor"), small)["factored second moment"] == 2 * 3 * 256 * 16


def test_muon_has_one_moment_for_matrices_of_layers() -> None:
    matrix = Parameter(("moe_layers", "mlp", "up"), (3, 256, 512), 256, 1)
    head = Parameter(("head",), (256, 1000), 256, 0)
    found = sizes(setting("muon"), matrix, head)
    assert found["first moment"] == 2 * (3 * 256 * 512 + 256 * 1000)
    assert found["second moment"] == 2 * 256 * 1000


def test_the_bundled_model_moves_router_biases_by_load() -> None:
    """2 MoE layers of 16 experts: float32 biases without moments; MaxText trains them."""
    held = parameters(load_preset("small"))
    bundled = sizes(setting(framework="bundled", weights="float32"), *held)
    assert bundled["router biases"] == 2 * 16 * 4
    maxtext = sizes(setting(weights="float32"), *held)
    assert maxtext["weights"] - bundled["weights"] == 2 * 16 * 4


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon", "sgd"])
def test_arrays_of_plans_give_what_each_plan_gives(optimizer: str) -> None:
    chosen = setting(optimizer)
    held = parameters(chosen.model)
    plans = [(1, 1), (2, 4), (8, 2), (3, 16)]
    fsdp, expert = (np.array(column) for column in zip(*plans, strict=True))
    many = state_rows(chosen, Degrees(1, fsdp, expert, 1, 1, 1, 1, 1, 1, 1, 1), held)
    for k, (f, e) in enumerate(plans):
        one = dataclasses.replace(chosen, plan=ParallelPlan(fsdp=f, expert=e))
        for row, alone in zip(many, state_rows(one, degrees_of(one), held), strict=True):
            assert isinstance(row.size_bytes, np.ndarray)
            assert row.size_bytes[k] == alone.size_bytes
