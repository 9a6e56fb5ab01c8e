"""Phases beside the step, on a model small enough to count by hand.

Tiny (`tests/builders/memory.py`): 128 words of width 64, twice 8,192 weights; a final norm of 64;
two layers of 4,096 + 2,048 + 2,048 + 4,096 weights of attention, norms of 2 · 64, a router of 256
with 4 biases, four experts and a shared one of 3 · 64 · 32: 103,240 weights, of which 328 lie
on every device: norms of 5 · 64 and the biases.
"""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from moeprof.errors import SpecError
from moeprof.projector.batches import fit
from moeprof.projector.breakdown import STEP, MemoryBreakdown, Peak, Phase
from moeprof.projector.frameworks.jax_phases import CONCURRENT_BYTES
from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.memory import project
from moeprof.projector.setting import OTHER_PHASES, Degrees, Setting, degrees_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.sources import load_model
from moeprof.specs.strategy import Strategy
from tests.builders.memory import GIB, breakdown, part, setting

WEIGHTS = 103_240
WHOLE = 328
STATE = 3 * 2 * WEIGHTS
"""Weights and two moments in bf16."""


def phase(of: Setting, name: str) -> Phase:
    return next(one for one in project(of).phases if one.name == name)


def sizes(rows: tuple[object, ...]) -> dict[str, int | None]:
    return {row.name: row.size_bytes for row in rows}  # type: ignore[attr-defined]


def tiny(plan: ParallelPlan | None = None, **more: object) -> Setting:
    of = setting(sequence=16, **more)
    return dataclasses.replace(of, plan=plan or ParallelPlan())


# What each phase holds.


def test_a_start_holds_the_state_and_nothing_else():
    start = phase(tiny(), "start")
    assert start.inside_bytes == STATE
    assert sizes(start.temp) == {"random numbers": 0}
    assert start.host_bytes == 0


@pytest.mark.parametrize(("build", "states"), [("0.2.5", 2), ("rocm-26.2", 1)])
def test_the_release_restores_beside_a_state_that_it_makes(build: str, states: int):
    restore = phase(tiny(maxtext_build=build), "restore")
    assert restore.inside_bytes == states * STATE
    assert all("setup_initial_state" in row.source for row in restore.temp)


def test_a_host_reads_its_shards_and_decodes_some_beside_them():
    """Two hosts of eight: each reads half of the state."""
    restore = phase(tiny(ParallelPlan(fsdp=16)), "restore")
    shards = STATE // 2
    assert sizes(restore.host) == {
        "shards being read": shards,
        "chunks being decoded": round(shards * 0.66),
    }


def test_orbax_reads_and_writes_no_more_than_its_limit_at_once():
    """671 B parameters · 6 B on 8 hosts are 503 GB of each."""
    model = load_model("deepseek_v3").model
    run = dataclasses.replace(
        tiny(ParallelPlan(fsdp=8, expert=8)), model=model, hardware=load_hardware("mi355x")
    )
    shards = 503_318_136_576
    written, read = phase(run, "checkpoint"), phase(run, "restore")
    copied = sizes(written.host)["shards copied from the devices"]
    assert copied == pytest.approx(shards, rel=1e-3)
    assert sizes(written.host)["shards being written"] == CONCURRENT_BYTES - 1
    assert sizes(read.host)["shards being read"] == CONCURRENT_BYTES - 1


@pytest.mark.parametrize(
    ("plan", "cut"),
    [
        (ParallelPlan(), 0),
        (ParallelPlan(data=2), STATE // 2),  # each device cuts a half of all
        (ParallelPlan(fsdp=2), 6 * WHOLE // 2),  # of what is not split
    ],
)
def test_arrays_of_several_devices_are_cut_on_the_device(plan: ParallelPlan, cut: int):
    checkpoint = phase(tiny(plan), "checkpoint")
    assert total_of(checkpoint.temp) == pytest.approx(cut, abs=1)
    assert checkpoint.host_bytes == 2 * STATE


def total_of(rows: tuple[object, ...]) -> int:
    return sum(row.size_bytes for row in rows)  # type: ignore[attr-defined]


def test_an_evaluation_holds_head_logits_and_last_hidden_state():
    """T = 2 · 16 tokens: the head, 64 · 128, logits of 128 and a hidden state of 64 per token."""
    of = tiny(pdbs=2, strategy="dense-cf1.25", maxtext_build="0.2.5")
    by_hand = 2 * (64 * 128 + 32 * 128 + 32 * 64)
    peaks = {peak.name: peak.size_bytes for peak in phase(of, "evaluation").peaks}
    assert peaks["loss"] == by_hand
    wider = dataclasses.replace(of, eval_pdbs=4)
    peaks = {peak.name: peak.size_bytes for peak in phase(wider, "evaluation").peaks}
    assert peaks["loss"] == 2 * (64 * 128 + 64 * 128 + 64 * 64)
    assert project(wider).temp_bytes == project(of).temp_bytes


def test_an_evaluation_of_unknown_batch_is_unknown():
    assert phase(tiny(pdbs=None), "evaluation").inside_bytes is None


def test_offloaded_state_lies_on_the_host_of_all_its_devices():
    """Moments of 4 B per weight; eight devices of sixteen share a host."""
    of = tiny(ParallelPlan(data=16), offload=frozenset({"optimizer"}))
    rows = {one.name: sizes(one.host) for one in project(of).phases}
    moments = 8 * 2 * WEIGHTS
    expected = {"first moment, offloaded": moments, "second moment, offloaded": moments}
    assert rows[STEP] == rows["start"] == rows["evaluation"] == expected
    twice = {name: 2 * size for name, size in expected.items()}
    assert twice.items() <= rows["restore"].items()  # restored, and made anew


def test_offloaded_activations_lie_on_the_host_at_a_step_alone():
    """An input of 16 · 64 in bf16 per layer, two layers."""
    of = tiny(offload=frozenset({"activations"}))
    found = project(of)
    assert sizes(found.step.host) == {"layer inputs, offloaded": 2 * 16 * 64 * 2}
    assert phase(of, "start").host == ()


def test_every_process_of_the_bundled_model_draws_all_weights():
    """As measured: 2 B of each weight before the largest, 8 B of that one."""
    from moeprof.model.train import random_weights

    model = ModelSpec(
        layers=2, hidden=512, heads=8, attention=GqaSpec(4, 64), experts=4, top_k=2, moe_ffn=512,
        vocab=2048, weight_dtype="bfloat16",
    )  # fmt: skip
    of = dataclasses.replace(tiny(framework="bundled"), model=model)
    random_weights(model, 0)
    tracemalloc.start()
    kept = random_weights(model, 0)
    measured = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept
    assert phase(of, "start").host_bytes == pytest.approx(measured, rel=0.01)


def test_megatron_starts_with_its_weights_twice_and_no_moments():
    """2 B of weights twice and 4 B of gradients, or masters of 4 B once the copies are gone."""
    start = phase(tiny(framework="megatron", precision=MIXED_PRECISION), "start")
    peaks = {peak.name: peak.size_bytes for peak in start.peaks}
    assert total_of(start.args) == 6 * WEIGHTS
    assert peaks == {"weights move into their buffer": 2 * WEIGHTS, "master weights": 4 * WEIGHTS}


def test_a_node_of_megatron_stages_each_element_once():
    """14 B per parameter, over 16 nodes of four GB300, as that which took 650 GB of 744 B."""
    plan = ParallelPlan(data=2, tensor=8, pipeline=1)
    card = load_hardware("gb300")
    of = tiny(plan, framework="megatron", hardware=card, precision=MIXED_PRECISION)
    copied = phase(of, "checkpoint").host_bytes
    assert copied == pytest.approx(14 * WEIGHTS / 4, abs=64)
    assert pytest.approx(650e9, rel=0.01) == 14 * 744e9 / 16


@pytest.mark.parametrize("name", ["restore", "evaluation"])
def test_what_megatron_holds_there_is_not_known_and_decides_nothing(name: str):
    found = project(tiny(framework="megatron", precision=MIXED_PRECISION))
    unknown = next(one for one in found.phases if one.name == name)
    assert unknown.inside_bytes is None
    assert next(row.formula for row in unknown.temp).startswith("cannot estimate")
    assert found.device_verdict(unknown) == "unknown"
    assert found.verdict == "fits"


def test_phases_that_a_run_does_not_come_to_are_left_out():
    of = tiny(phases=frozenset({"start"}))
    assert [one.name for one in project(of).phases] == ["start", STEP]
    assert [one.name for one in project(tiny()).phases] == [
        *OTHER_PHASES[:2], STEP, *OTHER_PHASES[2:]
    ]  # fmt: skip
    with pytest.raises(SpecError, match="phases: expected one of start"):
        tiny(phases=frozenset({"warm-up"}))


# What decides.


def beside(step: int, other: int | None, **host: int | None) -> MemoryBreakdown:
    """A step and a restore of these GiB inside the pool of 72 GiB."""
    found = breakdown(setting(host_memory_bytes=host.get("limit")), args=step * GIB)
    size = None if other is None else other * GIB
    rows = (part("state made anew", "temp", size),)
    on_host = (part("shards", "host", host.get("size", 0)),)
    restore = Phase("restore", (), (Peak("made", rows),), found.worst.outside, on_host)
    return dataclasses.replace(found, others=(restore,))


def test_the_phase_furthest_over_its_limit_decides():
    found = beside(50, 90)
    assert (found.largest.name, found.verdict) == ("restore", "oom")
    assert found.breaks_first == "restore: state made anew"
    assert found.over_bytes == 18 * GIB
    assert found.inside_bytes == 50 * GIB
    assert found.mem_fraction_range is None


def test_the_fractions_that_suffice_are_those_of_every_phase_that_decides():
    """80 GiB: a restore of 60 with 6 beside the pool, and a step with 2."""
    found = beside(50, 60)
    restore = found.others[0]
    step_outside = restore.outside
    more = (*step_outside, part("more communicators", "outside", 4 * GIB))
    found = dataclasses.replace(found, others=(dataclasses.replace(restore, outside=more),))
    alone = found.outside_bytes
    assert alone is not None
    low, high = found.mem_fraction_range or (0, 0)
    assert low == pytest.approx(60 / 80)
    assert high == pytest.approx(1 - (alone + 4 * GIB) / (80 * GIB))


def test_the_step_decides_where_no_other_needs_more():
    found = beside(50, 50)
    assert (found.largest.name, found.verdict, found.breaks_first) == (STEP, "fits", None)
    assert beside(80, 60).breaks_first == "loss: logits"


def test_an_unknown_phase_does_not_decide_but_an_unknown_step_does():
    assert beside(50, None).verdict == "fits"
    unknown = dataclasses.replace(breakdown(setting(), temp=None), others=beside(50, 60).others)
    assert (unknown.verdict, unknown.over_bytes) == ("unknown", None)
    over = dataclasses.replace(breakdown(setting(), temp=None), others=beside(50, 90).others)
    assert over.verdict == "oom"


def test_a_host_has_a_verdict_only_with_its_memory():
    told = beside(50, 50, size=600 * GIB, limit=512 * GIB)
    assert told.verdict == "oom"
    assert told.breaks_first == "restore, memory of the host: shards"
    near = beside(70, 50, size=600 * GIB, limit=512 * GIB)
    assert (near.verdict, near.breaks_first) == ("oom", told.breaks_first)
    untold = beside(50, 50, size=600 * GIB)
    assert (untold.verdict, untold.host_verdict(untold.others[0])) == ("fits", None)
    assert beside(50, 50, size=None, limit=512 * GIB).verdict == "fits"


# Many plans at once.


def restoring(hbm_bytes: int) -> Setting:
    """Two states of 619,440 B do not fit where a step does: on a device without reserves."""
    card = dataclasses.replace(load_hardware("tpu_v5e"), hbm_bytes=hbm_bytes)
    of = tiny(hardware=card, maxtext_build="0.2.5", mem_fraction=1.0, pdbs=1)
    return dataclasses.replace(of, strategy=Strategy("dense", 1.0))


@pytest.mark.parametrize("phases", [frozenset(OTHER_PHASES), frozenset({"start"})])
def test_plans_at_once_have_the_verdict_of_each_by_itself(phases: frozenset[str]):
    step = project(restoring(2**30)).inside_bytes
    assert step is not None
    assert step < 2 * STATE * 0.9
    of = dataclasses.replace(restoring((step + 2 * STATE) // 2), phases=phases)
    counts = np.array([1, 2, 4])
    many = fit(of, degrees_of(of)._replace(fsdp=counts, data=np.ones(3, np.int64)))
    for place, count in enumerate(counts):
        alone = project(dataclasses.replace(of, plan=ParallelPlan(fsdp=int(count))))
        verdicts = {"fits": many.has_room, "borderline": many.is_borderline, "oom": many.is_oom}
        assert verdicts[alone.verdict][place]
        assert many.is_other[place] == (alone.largest.name != STEP)
    assert many.is_oom[0] == ("restore" in phases)


def test_unknown_sizes_stay_unknown_at_once():
    of = tiny(pdbs=None)
    assert fit(of, Degrees(*([1] * 8), None, 1, 16)).is_unknown.all()


def test_stages_that_share_a_host_write_all_their_state_there():
    """One host of eight with both stages, taken to be like the fuller: a layer, norm and head."""
    layer = (WEIGHTS - 2 * 8_192 - 64) // 2
    of_stages = 2 * (8_192 + 64 + layer)
    checkpoint = phase(tiny(ParallelPlan(fsdp=4, pipeline=2), microbatches=2), "checkpoint")
    assert sizes(checkpoint.host)["shards copied from the devices"] == 3 * 2 * of_stages
    alone = phase(tiny(ParallelPlan(fsdp=8)), "checkpoint")
    assert sizes(alone.host)["shards copied from the devices"] == STATE


def test_a_phase_with_less_room_than_the_step_decides_though_both_have_some():
    """As where what lies beside the pool is what binds, which all phases share."""
    binding = breakdown(setting(), args=50 * GIB, outside=15 * GIB // 2)  # of 8; the pool 72
    found = dataclasses.replace(binding, others=beside(50, 69).others)
    assert (found.largest.name, found.verdict) == ("restore", "borderline")
