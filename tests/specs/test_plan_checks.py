from __future__ import annotations

import dataclasses

import pytest

from moeprof.errors import PlanError
from moeprof.specs.plan import ParallelPlan, fill_plan
from moeprof.specs.plan_checks import (
    Batch,
    check_megatron_plan,
    check_plan,
    plan_remarks,
)
from moeprof.specs.presets import load_preset

from .test_model import SMALL

MIXTRAL = load_preset("mixtral_8x7b")
DEEPSEEK = load_preset("deepseek_v3")
MOE_1T = load_preset("moe_1t")


def with_experts(experts: int):
    return dataclasses.replace(SMALL, experts=experts)


def test_sixty_experts_take_the_divisors_that_divide_the_devices():
    # Divisors of 60: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60; of those 120 has all, 64 only three.
    with pytest.raises(PlanError, match=r"expert 64; valid on 64 devices: 1, 2, 4\."):
        check_plan(ParallelPlan(expert=64), with_experts(60), 64)
    with pytest.raises(PlanError, match=r"120 devices: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60\."):
        check_plan(ParallelPlan(expert=120), with_experts(60), 120)


def test_two_faults_are_two_complaints():
    with pytest.raises(PlanError) as caught:
        check_plan(ParallelPlan(expert=24), with_experts(256), 64)
    first, second = str(caught.value).split("; plan needs")
    assert "256 experts cannot be split evenly over expert 24" in first
    assert "1 × 1 × 24 = 24 devices (data × fsdp × expert) but there are 64" in second


def test_the_rest_goes_to_the_open_degree():
    assert fill_plan(8, expert=-1).expert == 8


def test_a_batch_that_microbatches_do_not_divide_is_named():
    with pytest.raises(PlanError, match="batch 3 cannot be cut into 4 microbatches; valid: 1, 3"):
        check_plan(ParallelPlan(), SMALL, 1, Batch(device_batch=3, microbatches=4))


@pytest.mark.parametrize(
    ("plan", "batch", "message"),
    [
        ({"tensor": 3}, {}, "32 heads cannot be split evenly over tensor 3; valid: 1, 2, 4, 8"),
        ({"tensor": 3}, {}, "8 key and value heads cannot be split evenly over tensor 3"),
        ({"tensor": 12}, {}, "8 key and value heads can neither be split nor copied evenly over"),
        ({"pipeline": 2, "virtual": 20}, {}, "32 layers are fewer than pipeline 2 × virtual 20"),
        ({"virtual": 2}, {}, "virtual 2 needs pipeline of at least 2, found 1"),
        (
            {"pipeline": 3},
            {"schedule": "gpipe"},
            "32 layers cannot be split evenly over pipeline 3.*gpipe needs; valid.*1, 2, 4, 8",
        ),
        (
            {"pipeline": 4, "virtual": 2},
            {"microbatches": 6},
            "6 microbatches are no multiple of pipeline 4.*nearest: 4 or 8",
        ),
        (
            {"pipeline": 4},
            {"microbatches": 3, "schedule": "interleaved"},
            "3 microbatches are no multiple of pipeline 4.*nearest: 4",
        ),
        (
            {"pipeline": 2},
            {"layers_per_stage": (10, 20)},
            "layers per stage 10, 20: 2 counts of 30 layers.*2 stages × 1 chunks and 32 layers",
        ),
        ({"pipeline": 4}, {"schedule": "zbv", "microbatches": 8}, "zbv: each stage has two chunks"),
        (
            {"pipeline": 4, "virtual": 2},
            {"schedule": "zb-h1", "microbatches": 8},
            "zb-h1: each stage has one chunk",
        ),
        ({"context": 3}, {"sequence": 4096}, "4096 cannot be cut into 3 pieces.*1, 2, 4, 8"),
        (
            {"fsdp": 4, "expert": 2},
            {"global_batch": 100},
            "global batch 100 cannot be split over 8 batch shards; nearest: 96 or 104",
        ),
        (
            {"fsdp": 8},
            {"global_batch": 96, "pdbs": 3, "microbatches": 2},
            "96 is not 8 batch shards × pdbs 3 × 2 microbatches = 48; .*microbatches to 4",
        ),
    ],
)
def test_each_rule_names_both_numbers_and_the_choices(plan, batch, message):
    with pytest.raises(PlanError, match=message):
        check_plan(ParallelPlan(**plan), MIXTRAL, None, Batch(**batch))


def test_a_dense_model_has_no_experts_to_spread():
    with pytest.raises(PlanError, match="without experts has none to spread over expert 4"):
        check_plan(ParallelPlan(expert=4), load_preset("llama3_1_405b"), None)


def test_what_fits_passes():
    plan = ParallelPlan(fsdp=8, expert=8)
    check_plan(plan, DEEPSEEK, 64, Batch(4096, pdbs=9, global_batch=576))
    check_plan(ParallelPlan(pipeline=16), DEEPSEEK, 16, Batch(microbatches=5))
    check_plan(ParallelPlan(tensor=16, context=2), MIXTRAL, 32, Batch(4096))


def test_an_expert_width_that_does_not_divide():
    model = dataclasses.replace(SMALL, moe_ffn=6, shared_experts=2)
    with pytest.raises(PlanError, match=r"6 features of an expert.*expert_tensor 4; valid: 1, 2"):
        check_plan(ParallelPlan(tensor=4, expert_tensor=4), model, None)


def test_megatron_spreads_experts_inside_the_other_axes():
    # 1024 devices: PP 24 does not divide them; PP 16 × TP 1 × CP 2 × DP 32, EP 8 inside 64.
    plan = ParallelPlan(data=32, context=2, pipeline=16, expert=8)
    check_megatron_plan(plan, MOE_1T, 1024, Batch(4096, microbatches=16))
    with pytest.raises(PlanError, match=r"32 × 2 × 24 = 1536 devices .*data × context × pipeline"):
        check_megatron_plan(dataclasses.replace(plan, pipeline=24), MOE_1T, 1024)


def test_megatron_needs_experts_to_divide_a_stage():
    plan = ParallelPlan(data=4, tensor=2, pipeline=2, expert=16)
    with pytest.raises(
        PlanError, match=r"expert 16 × expert_tensor 1 = 16 does not divide the 8"
    ) as e:
        check_megatron_plan(plan, MOE_1T, 16)
    assert "valid expert: 1, 2, 4, 8" in str(e.value)
    folded = ParallelPlan(data=4, tensor=2, pipeline=2, expert=8, expert_tensor=2)
    with pytest.raises(PlanError, match=r"8 × expert_tensor 2 = 16 .*valid expert: 1, 2, 4"):
        check_megatron_plan(folded, MOE_1T, 16)


def test_megatron_cuts_a_sequence_into_twice_as_many_pieces():
    plan = ParallelPlan(context=4)
    check_plan(plan, MIXTRAL, 4, Batch(12))
    with pytest.raises(PlanError, match="sequence 12 cannot be cut into 8 pieces for context 4"):
        check_megatron_plan(plan, MIXTRAL, 4, Batch(12))


def test_megatrons_batch_is_spread_over_data_alone():
    plan = ParallelPlan(data=4, tensor=2, expert=8)
    check_megatron_plan(plan, MIXTRAL, 8, Batch(pdbs=2, microbatches=3, global_batch=24))


def test_what_is_legal_and_may_surprise_is_said():
    assert plan_remarks(ParallelPlan(tensor=16), MIXTRAL) == (
        "8 key and value heads on tensor 16: each is held 2 times",
        "tensor 16 does not split experts: their weights are divided by expert 1 alone "
        "(expert_tensor 16 would)",
    )
    (uneven,) = plan_remarks(ParallelPlan(pipeline=16), DEEPSEEK)
    assert uneven == (
        "61 layers over 16 chunks: 3 or 4 each; --layers-per-stage chooses the layers of each"
    )
    assert plan_remarks(ParallelPlan(fsdp=8, expert=8), DEEPSEEK) == ()
