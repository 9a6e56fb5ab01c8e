"""Steps as a whole: rows that add up, published throughputs, many plans at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moeprof.errors import SpecError
from moeprof.projector.setting import Degrees, Precision, Setting, degrees_of
from moeprof.projector.step_time import estimate, step_seconds
from moeprof.projector.step_time.rates import Tuning
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy

# Tokens/s/device of DeepSeek-V3 on 64 MI355X (ROCm/rocm-blogs, maxtext-dropless-moe).
MEASURED = {
    ("dense-cf1.25", 4): 961.1,
    ("dense-cf1.25", 7): 1209.8,
    ("dense-cf1.25", 8): 1292.7,
    ("dense-cf1.25", 9): 1399.0,
    ("dense-cf1.25", 16): 1438.1,
    ("dense-cf2", 4): 813.1,
    ("dense-cf2", 7): 934.3,
    ("dense-cf2", 8): 960.1,
    ("dense-cf2", 9): 994.8,
    ("dense-cf2", 16): 1015.1,
    ("dense-cf4", 4): 532.6,
    ("dense-cf4", 7): 575.5,
    ("dense-cf4", 8): 580.7,
    ("sparse-gmm", 4): 757.1,
    ("sparse-gmm", 7): 974.5,
    ("sparse-gmm-deepep", 4): 873.4,
    ("sparse-gmm-deepep", 7): 1121.6,
    ("sparse-gmm-deepep", 8): 1179.7,
    ("sparse-gmm-deepep", 9): 1189.4,
}


def run(strategy: str = "sparse-gmm-deepep", pdbs: int = 8, **changes: object) -> Setting:
    """DeepSeek-V3 on 8 × 8 MI355X."""
    base = Setting(
        load_preset("deepseek_v3"),
        ParallelPlan(fsdp=8, expert=8),
        parse_strategy(strategy),
        load_hardware("mi355x"),
        pdbs=pdbs,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_rows_add_up_to_the_step():
    found = estimate(run())
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.seconds, rel=1e-12)
    assert found.tokens_per_s_per_device == pytest.approx(8 * 4096 / found.seconds)
    assert all(row.formula and row.source for row in found.rows)


@pytest.mark.parametrize(("cell", "tokens_per_s"), MEASURED.items())
def test_published_throughput_within_a_tenth(cell, tokens_per_s):
    strategy, pdbs = cell
    assert estimate(run(strategy, pdbs)).tokens_per_s_per_device == pytest.approx(
        tokens_per_s, rel=0.10
    )


@pytest.mark.parametrize("pdbs", [4, 7, 8, 9, 16])
def test_strategies_come_in_the_order_in_which_they_were_measured(pdbs):
    cells = {s: v for (s, p), v in MEASURED.items() if p == pdbs}
    projected = {s: estimate(run(s, pdbs)).tokens_per_s_per_device for s in cells}
    assert sorted(cells, key=cells.__getitem__) == sorted(projected, key=projected.__getitem__)


def test_components_of_a_traced_step():
    # AMD-AGI/maxtext-slurm, utils/profile_drill.py: 6 sequences per device, 8.21 s of GEMMs, 1.83 s
    # of attention (one process per GPU), 8.18 s of RCCL with DeepEP.
    rows = {row.name: row.seconds for row in estimate(run(pdbs=6)).rows}
    gemms = ("attention projections", "dense feed-forward", "router", "shared expert",
             "routed experts", "logits")  # fmt: skip
    assert sum(rows[name] for name in gemms) == pytest.approx(8.21, rel=0.03)
    assert rows["attention core"] == pytest.approx(1.83, rel=0.03)
    assert rows["FSDP gathers and gradient sums"] == pytest.approx(8.18, rel=0.10)


def test_the_dense_fallback_of_ragged_dot_is_told_by_its_time():
    assert estimate(run("sparse-ragged-dot")).seconds > 20 * estimate(run("sparse-gmm")).seconds


# 16 equal stages: one layer each and next to no vocabulary.
EVEN = ModelSpec(
    layers=96,
    hidden=4096,
    heads=32,
    attention=GqaSpec(8, 128),
    experts=64,
    top_k=4,
    moe_ffn=2048,
    vocab=8,
)


@pytest.mark.parametrize(("virtual", "bubble"), [(1, 0.4839), (3, 0.2381), (6, 0.1351)])
def test_equal_stages_have_the_bubble_of_the_schedule(virtual, bubble):
    plan = ParallelPlan(data=8, expert=8, pipeline=16, virtual=virtual)
    found = estimate(run(model=EVEN, plan=plan, microbatches=16, framework="megatron", pdbs=1))
    # Stage-to-stage transfers of a schedule with one chunk are no bubble of equal stages.
    transfers = sum(r.seconds for r in found.rows if r.name == "pipeline transfers")
    assert found.bubble == pytest.approx(bubble, abs=0.004 + transfers / found.seconds)


def test_a_heavy_head_makes_the_bubble_larger():
    even = run(model=EVEN, plan=ParallelPlan(expert=8, pipeline=16), microbatches=16, pdbs=1)
    heavy = replace(even, model=replace(EVEN, vocab=200_000))
    assert estimate(heavy).bubble > estimate(even).bubble + 0.02
    # Fewer layers beside the head: 6 · 15 + 6 layers become 15 stages of 6 or 7 and one of 3.
    lighter = replace(heavy, layers_per_stage=(7,) * 3 + (6,) * 12 + (3,))
    assert estimate(lighter).seconds < estimate(heavy).seconds


def test_many_plans_at_once_are_each_plan_by_itself():
    plans = [
        ParallelPlan(fsdp=8, expert=8),
        ParallelPlan(data=2, fsdp=4, expert=8),
        ParallelPlan(fsdp=2, expert=32),
        ParallelPlan(expert=8, tensor=2, context=2, pipeline=2, virtual=2),
        ParallelPlan(fsdp=4, expert=4, pipeline=4),
    ]
    one_by_one = [estimate(run(plan=plan, microbatches=4)).seconds for plan in plans]
    each = [degrees_of(run(plan=plan, microbatches=4)) for plan in plans]
    together = Degrees(*(np.asarray(column) for column in zip(*each, strict=True)))
    found = step_seconds(run(microbatches=4), together)
    assert np.asarray(found) == pytest.approx(one_by_one, rel=1e-12)


def test_overlap_hides_the_exchange_while_the_pipeline_is_full():
    plain = run(microbatches=16, framework="megatron")
    overlapped = estimate(plain, Tuning(overlaps_exchange=True))
    rows = {row.name: row for row in overlapped.rows}
    whole = {row.name: row for row in estimate(plain).rows}["dispatch and combine"].seconds
    # 15 of 16 microbatches find another to run beside.
    assert rows["dispatch and combine"].hidden_s == pytest.approx(whole * 15 / 16)
    assert overlapped.seconds == pytest.approx(estimate(plain).seconds - whole * 15 / 16)


def test_waits_for_the_device_are_megatrons_alone():
    assert not any(row.kind == "host" and row.seconds for row in estimate(run()).rows)
    megatron = run(framework="megatron")
    waits = [
        {row.name: row.seconds for row in estimate(megatron, Tuning(sync_free=level)).rows}
        for level in range(4)
    ]
    # 58 MoE layers, forward and again, 0.1 ms each.
    assert [w.get("waits for the device", 0) for w in waits] == pytest.approx(
        [58 * 2 * n * 1e-4 for n in (4, 2, 1, 0)]
    )


@pytest.mark.parametrize("name", ["sequence", "pdbs"])
def test_what_is_missing_is_named(name):
    with pytest.raises(SpecError, match=f"expected {name}, found none"):
        estimate(run(**{name: None}))


def test_a_level_that_there_is_none_of():
    with pytest.raises(SpecError, match="expected 0 to 3, found 7"):
        Tuning(sync_free=7)


def test_an_unknown_network_is_said():
    tpu = load_hardware("tpu_v5e")
    with pytest.raises(SpecError, match="beyond 256 devices"):
        estimate(run("sparse-gmm", hardware=tpu, plan=ParallelPlan(fsdp=64, expert=8)))


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_element"),
    [
        ("adamw", 14),  # weight and two moments read and written, a gradient read: 2 · 6 + 2
        ("muon", 10),  # one moment
        ("adafactor", 6),  # its statistics are two edges of a matrix
        ("sgd", 6),
    ],
)
def test_the_update_passes_what_the_optimizer_keeps(optimizer, bytes_per_element):
    seconds = {
        name: next(r for r in estimate(run(optimizer=name)).rows if r.name == "optimizer").seconds
        for name in (optimizer, "sgd")
    }
    assert seconds[optimizer] / seconds["sgd"] == pytest.approx(bytes_per_element / 6)


def test_gradients_of_the_bundled_model_are_summed_in_the_format_of_its_weights():
    plan = ParallelPlan(data=2, fsdp=4, expert=8)
    formats = Precision(weights="float32")  # gradients: autodiff makes them of the weights
    sums = {
        framework: next(
            r
            for r in estimate(
                run("sparse-gmm", framework=framework, plan=plan, precision=formats)
            ).rows
            if r.name == "data-parallel sums"
        ).seconds
        for framework in ("bundled", "maxtext")
    }
    assert sums["bundled"] / sums["maxtext"] == pytest.approx(2)
