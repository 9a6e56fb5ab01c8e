"""What stages, tensor and context parallelism split of a JAX step, by hand."""

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.projector.breakdown import StageBreakdown, total
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.parameters import parameter_count
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

MODEL = ModelSpec(
    layers=8,
    dense_layers=2,
    dense_ffn=4096,
    hidden=1024,
    heads=8,
    attention=GqaSpec(kv_heads=8, head_dim=128),
    experts=8,
    top_k=2,
    moe_ffn=512,
    vocab=32000,
    shared_experts=0,
    weight_dtype="bfloat16",
    compute_dtype="bfloat16",
)
TOKENS = 2048


def setting(plan: ParallelPlan, **changes: object) -> Setting:
    return Setting(
        MODEL,
        plan,
        parse_strategy("sparse-gmm"),
        load_hardware("h100_sxm"),
        sequence=TOKENS,
        **changes,  # type: ignore[arg-type]
    )


def bytes_of(stage: StageBreakdown, name: str) -> float:
    found = [row for row in (*stage.args, *stage.peaks[0].rows) if row.name == name]
    return sum(float(row.size_bytes or 0) for row in found)


def test_an_uneven_split_is_told_by_stage() -> None:
    """Layers 0 and 1 are dense; 1 + 2 + 2 + 3; embedding first, head and final norm last."""
    plan = ParallelPlan(pipeline=4)
    found = project(setting(plan, layers_per_stage=(1, 2, 2, 3), microbatches=4))
    attention, norms = 4 * 1024 * 1024, 2 * 1024
    dense = attention + norms + 3 * 1024 * 4096
    moe = attention + norms + 8 * 3 * 1024 * 512 + 1024 * 8 + 8
    ends = 32000 * 1024
    by_hand = [ends + dense, dense + moe, 2 * moe, 3 * moe + ends + 1024]
    assert [bytes_of(stage, "weights") / 2 for stage in found.stages] == by_hand
    assert sum(by_hand) == parameter_count(MODEL)
    assert found.worst.stage == 3


def test_a_stage_holds_the_microbatches_in_flight() -> None:
    """1F1B with 4 stages: 4, 3, 2, 1 microbatches; a microbatch keeps one input per layer."""
    plan = ParallelPlan(pipeline=4)
    found = project(setting(plan, layers_per_stage=(2, 2, 2, 2), microbatches=8))
    one = 2 * TOKENS * 1024 * 2
    held = [bytes_of(stage, "layer inputs") for stage in found.stages]
    assert held == [4 * one, 3 * one, 2 * one, one]


def test_maxtexts_pipeline_is_one_program_that_holds_all_microbatches() -> None:
    """6 MoE layers on 3 stages; the 2 dense layers, embedding and head are on each."""
    plan = ParallelPlan(pipeline=3)
    found = project(setting(plan, schedule="circular", microbatches=6))
    assert len(found.stages) == 3
    totals = {total(stage.args) for stage in found.stages}
    assert len(totals) == 1
    assert bytes_of(found.stages[0], "layer inputs") == 6 * (2 + 2) * TOKENS * 1024 * 2
    with pytest.raises(SpecError, match="6 layers evenly"):
        project(setting(ParallelPlan(pipeline=4), schedule="circular", microbatches=4))


def test_context_halves_tokens_and_splits_weights() -> None:
    """FSDP 4 or FSDP 2 × CP 2: the weights' shares are equal, the tokens are half."""
    whole, split = (
        project(setting(plan)) for plan in (ParallelPlan(fsdp=4), ParallelPlan(fsdp=2, context=2))
    )
    assert bytes_of(split.stages[0], "weights") == bytes_of(whole.stages[0], "weights")
    halves = [bytes_of(b.stages[0], "layer inputs") for b in (whole, split)]
    assert halves[0] == 2 * halves[1]


def test_tensor_parallelism_splits_widths_and_inputs() -> None:
    whole, split = (project(setting(plan)) for plan in (ParallelPlan(), ParallelPlan(tensor=2)))
    for name in ("layer inputs", "rows inside experts: gate, up, product, cotangent"):
        assert bytes_of(whole.stages[0], name) == 2 * bytes_of(split.stages[0], name)
    rows = "fanned-out and returned rows, cotangents"
    assert bytes_of(whole.stages[0], rows) == bytes_of(split.stages[0], rows)


def test_accumulation_holds_gradients_twice() -> None:
    one, four = (
        project(setting(ParallelPlan(), microbatches=m, maxtext_build="rocm-26.2")) for m in (1, 4)
    )
    gradients = bytes_of(one.stages[0], "gradients")
    assert bytes_of(four.stages[0], "gradients") == gradients
    assert bytes_of(four.stages[0], "gradients summed over microbatches") == gradients


def test_what_moves_to_the_host_is_said() -> None:
    """Two bfloat16 moments of all parameters."""
    found = project(setting(ParallelPlan(), offload=frozenset({"optimizer"})))
    size = parameter_count(MODEL) * 4 / 2**20
    assert any(f"{size:.1f} MiB per device" in note for note in found.notes), found.notes
    assert all(row.name != "first moment" for row in found.rows)


def test_layers_that_are_not_recomputed_keep_everything() -> None:
    plan = ParallelPlan()
    full, half, none = (
        project(setting(plan, recomputed_layers=n)).temp_bytes or 0 for n in (8, 4, 0)
    )
    kept = project(dataclasses.replace(setting(plan), recomputed_layers=0))
    assert full < half < none == kept.temp_bytes
    assert none - half == pytest.approx(half - full, rel=1e-6)


def test_the_optimizer_works_on_one_set_of_gradients() -> None:
    """By then the set of the last microbatch is part of the sum."""
    updates = [
        next(peak for peak in stage.peaks if peak.name == "optimizer update").size_bytes
        for m in (1, 4)
        for stage in project(setting(ParallelPlan(), microbatches=m)).stages
    ]
    assert updates[0] == updates[1]
