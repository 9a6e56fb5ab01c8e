"""What each optimisation buys: the run with one thing changed, projected again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.memory import project
from moeprof.projector.setting import Precision, Setting
from moeprof.projector.step_time import estimate
from moeprof.projector.step_time.rates import Tuning
from moeprof.projector.what_if import Effect, what_if
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy


def jax_run(strategy: str = "sparse-gmm-deepep") -> Setting:
    """DeepSeek-V3 on 8 × 8 MI355X, 7 sequences per device."""
    return Setting(
        load_preset("deepseek_v3"),
        ParallelPlan(fsdp=8, expert=8),
        parse_strategy(strategy),
        load_hardware("mi355x"),
        pdbs=7,
        schedule="circular",
    )


def megatron_run() -> Setting:
    """DeepSeek-V2 on four stages of 8 MI355X."""
    return Setting(
        load_preset("deepseek_v2"),
        ParallelPlan(data=8, expert=8, pipeline=4, remat=Remat("none")),
        parse_strategy("sparse-gmm"),
        load_hardware("mi355x"),
        microbatches=32,
        framework="megatron",
        precision=MIXED_PRECISION,
    )


def named(effects: tuple[Effect, ...], start: str) -> Effect:
    """The one whose name starts so."""
    (found,) = (effect for effect in effects if effect.optimisation.startswith(start))
    return found


def test_an_effect_is_the_difference_of_two_projections():
    run = jax_run("sparse-gmm")
    changed = replace(run, strategy=parse_strategy("sparse-gmm-deepep"))
    effect = named(what_if(run), "DeepEP")
    assert not effect.is_used
    assert effect.saved_s == pytest.approx(estimate(run).seconds - estimate(changed).seconds)
    saved = (project(run).total_bytes or 0) - (project(changed).total_bytes or 0)
    assert effect.saved_bytes == saved > 0
    assert effect.verdict == project(changed).verdict


def test_what_a_run_has_is_told_by_what_it_would_cost_to_be_without():
    without = named(what_if(jax_run("sparse-gmm")), "DeepEP")
    having = named(what_if(jax_run("sparse-gmm-deepep")), "DeepEP")
    assert having.is_used
    assert having.saved_s == pytest.approx(without.saved_s)
    assert having.saved_bytes == without.saved_bytes


def test_grouped_gemm_is_worth_most():
    effects = what_if(jax_run())
    assert max(effects, key=lambda effect: effect.saved_s).optimisation.startswith("grouped GEMM")


def test_recomputing_less_is_faster_and_larger():
    effects = what_if(jax_run())
    none, some = named(effects, "recompute none"), named(effects, "recompute save_out_proj")
    assert none.saved_s > some.saved_s > 0
    assert (none.saved_bytes or 0) < (some.saved_bytes or 0) < 0
    assert none.verdict == "oom"


def test_megatrons_run_has_levels_overlap_and_chunks():
    effects = what_if(megatron_run())
    levels = [named(effects, f"sync-free MoE, level {n}").saved_s for n in (1, 2, 3)]
    assert 0 < levels[0] < levels[1] < levels[2]
    assert named(effects, "sync-free MoE, level 3").price == "buffers for the worst case"
    assert named(effects, "all-to-all beside").saved_s > 0
    assert named(effects, "3 chunks of layers per stage").saved_s > 0
    assert named(effects, "recompute full").saved_bytes
    assert named(effects, "CP 2, data 4").saved_bytes


def test_overlap_that_a_run_has_is_taken_away():
    effect = named(what_if(megatron_run(), Tuning(overlaps_exchange=True)), "all-to-all beside")
    assert effect.is_used
    assert effect.saved_s > 0


def test_megatron_has_no_ragged_dot_to_compare_with():
    assert not [e for e in what_if(megatron_run()) if e.optimisation.startswith("grouped")]


def test_a_dense_model_has_no_experts_to_optimise():
    dense = replace(jax_run(), model=load_preset("llama3_1_405b"), plan=ParallelPlan(fsdp=64))
    names = " ".join(effect.optimisation for effect in what_if(dense))
    assert "grouped" not in names
    assert "fp8" not in names


def test_jax_has_no_levels_of_waiting():
    assert not [e for e in what_if(jax_run()) if e.optimisation.startswith("sync-free")]


def test_times_are_of_as_many_tokens():
    run = jax_run()
    changed = replace(run, plan=ParallelPlan(fsdp=4, expert=8, context=2))
    found, other = estimate(run), estimate(changed)
    tokens = 7 * 4096 * 64
    assert other.seconds * other.tokens_per_s_per_device * 64 == pytest.approx(tokens / 2)
    effect = named(what_if(run), "CP 2, fsdp 4")
    assert effect.saved_s == pytest.approx(found.seconds - 2 * other.seconds)


def test_a_changed_run_that_cannot_be_is_left_out():
    # 8 devices of a stage hold no expert group of 16.
    assert not [e for e in what_if(megatron_run()) if e.optimisation.startswith("EP 16")]


def test_what_is_saved_is_of_the_phase_that_needs_most():
    """Restoring needs 65.2 GiB and a step 57.2: a smaller loss gives no room."""
    wide = Precision(*(6 * ["float32"]))
    run = Setting(
        load_preset("mixtral-8x7b"),
        ParallelPlan(fsdp=8, expert=2),
        parse_strategy("dense-cf1.25"),
        load_hardware("h100_sxm"),
        sequence=256,
        precision=replace(wide, compute="bfloat16", master=None),
    )
    assert project(run).largest.name == "restore"
    effect = named(what_if(run), "loss in 8 tiles")
    assert effect.saved_bytes == 0
