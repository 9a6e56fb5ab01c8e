"""Search: legal, fitting and ranked plans, each as the plan by itself would be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.errors import PlanError, SpecError
from moeprof.projector.batches import MOST_PDBS, fit, largest_batches
from moeprof.projector.framework import FRAMEWORKS
from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.memory import project
from moeprof.projector.search import search, setting_at
from moeprof.projector.search.space import Space, broken_rule, plans
from moeprof.projector.setting import MegatronOptions, Setting, degrees_of
from moeprof.projector.step_time import (
    OTHER_PLAN,
    OTHER_STRATEGY,
    SAME_STRATEGY,
    UNCHECKED,
    TimedRun,
    basis_of,
    estimate,
)
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.plan_checks import Batch, check_megatron_plan, check_plan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import FULL, Remat
from moeprof.specs.strategy import parse_strategy


def base(name: str = "deepseek_v3", framework: str = "maxtext", **changes: object) -> Setting:
    """What all plans of a search share."""
    is_megatron = framework == "megatron"
    setting = Setting(
        load_preset(name),
        ParallelPlan(),
        parse_strategy("sparse-gmm-deepep"),
        load_hardware("mi355x"),
        framework=framework,
        schedule="1f1b" if is_megatron else "circular",
    )
    if is_megatron:
        setting = replace(setting, precision=MIXED_PRECISION)
    return replace(setting, **changes)  # type: ignore[arg-type]


def space(setting: Setting, devices: int = 64, **changes: object) -> Space:
    """A space of one strategy with full rematerialisation."""
    found = Space(setting, devices, (setting.strategy,), (FULL,))
    return replace(found, **changes)  # type: ignore[arg-type]


def test_all_ways_to_split_four_devices_over_the_axes():
    degrees = plans(space(base(), 4))
    meshes = set(zip(*(np.asarray(v).tolist() for v in degrees[:6]), strict=True))
    # 4 = 2 · 2: 6 axes for a single 4, 15 pairs of axes for two 2s.
    assert len(meshes) == 21
    assert all(np.prod(mesh) == 4 for mesh in meshes)


@pytest.mark.parametrize("framework", ["maxtext", "megatron"])
def test_a_model_without_experts_has_no_expert_parallelism(framework):
    dense = base("llama3_1_405b", framework, strategy=parse_strategy("dense-cf1.25"))
    assert set(np.asarray(plans(space(dense, 16)).expert).tolist()) == {1}


def test_megatrons_experts_lie_inside_a_stage():
    degrees = plans(space(base(framework="megatron"), 8, allowed={"pipeline": frozenset({2})}))
    devices = degrees.data * degrees.tensor * degrees.context * degrees.pipeline
    assert set(np.asarray(devices).tolist()) == {8}
    assert set(np.asarray(degrees.expert).tolist()) == {1, 2, 4}


WORLDS = {"maxtext": check_plan, "megatron": check_megatron_plan}


@given(
    st.sampled_from(["deepseek_v3", "qwen3_30b_a3b", "gpt_oss_20b", "qwen3_next_80b_a3b"]),
    st.sampled_from(sorted(WORLDS)),
    st.sampled_from([6, 16, 24, 64]),
    st.sampled_from([None, 48, 256]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_plans_are_legal_as_the_check_of_one_plan_says(name, framework, devices, batch, random):
    area = space(base(name, framework), devices, global_batch=batch)
    degrees = plans(area)
    broken = broken_rule(area, degrees)
    for place in random.sample(range(len(broken)), min(25, len(broken))):
        one = setting_at(area.base, degrees, place)
        asked = Batch(
            sequence=one.sequence,
            pdbs=None if batch is None else one.pdbs,
            microbatches=one.microbatches,
            global_batch=batch,
            schedule=one.schedule,
        )
        try:
            WORLDS[framework](one.plan, one.model, devices, asked)
            is_legal = True
        except PlanError:
            is_legal = False
        assert (broken[place] < 0) == is_legal, one.plan


@given(
    st.sampled_from(["deepseek_v3", "mixtral_8x7b"]),
    st.sampled_from(sorted(FRAMEWORKS)),
    st.sampled_from(["dense-cf1.25", "sparse-gmm", "sparse-gmm-deepep"]),
    st.sampled_from(["full", "none", "minimal"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=20, deadline=None)
def test_a_plan_among_thousands_is_the_plan_by_itself(name, framework, strategy, remat, random):
    setting = base(name, framework, strategy=parse_strategy(strategy))
    setting = replace(setting, plan=ParallelPlan(remat=Remat(remat)))
    missing = dict.fromkeys(setting.program.missing_axes, frozenset({1}))
    area = space(setting, 32, allowed=missing)
    degrees = plans(area)
    legal = np.flatnonzero(broken_rule(area, degrees) < 0)
    degrees = type(degrees)(*(np.asarray(values)[legal] for values in degrees))
    sizes = fit(setting, degrees)
    for place in random.sample(range(len(legal)), min(4, len(legal))):
        alone = project(setting_at(setting, degrees, place))
        assert sizes.args[place] == alone.args_bytes
        assert sizes.temp[place] == alone.temp_bytes
        assert sizes.outside[place] == alone.outside_bytes
        verdicts = (
            ("fits", sizes.has_room),
            ("borderline", sizes.is_borderline),
            ("oom", sizes.is_oom),
        )
        assert [name for name, mask in verdicts if mask[place]] == [alone.verdict]


def test_found_plans_are_as_fast_as_each_by_itself():
    result = search(space(base(), pdbs=4), top=5)
    for found in result.found:
        alone = estimate(found.setting)
        assert found.seconds == pytest.approx(alone.seconds, rel=1e-12)
        assert found.tokens_per_s_per_device == pytest.approx(alone.tokens_per_s_per_device)


def test_the_largest_batch_is_the_last_that_fits():
    area = space(base(), allowed={"pipeline": frozenset({1}), "context": frozenset({1})})
    degrees = plans(area)
    legal = np.flatnonzero(broken_rule(area, degrees) < 0)[:12]
    degrees = type(degrees)(*(np.asarray(values)[legal] for values in degrees))
    batches = largest_batches(area.base, degrees)
    for place, pdbs in enumerate(batches):
        one = setting_at(area.base, degrees, place)
        if pdbs > 1:
            assert project(replace(one, pdbs=int(pdbs))).verdict == "fits"
        if pdbs < MOST_PDBS:
            assert project(replace(one, pdbs=int(pdbs) + 1)).verdict != "fits"


def test_every_plan_is_accounted_for():
    area = replace(
        space(base(), pdbs=8),
        strategies=tuple(map(parse_strategy, ("dense-cf2", "sparse-gmm-deepep"))),
        remats=(FULL, Remat("none")),
    )
    result = search(area)
    assert result.considered == result.fitting + sum(count for _, count in result.rejected)
    assert result.fitting >= len(result.found) == 10


def test_plans_with_room_come_first_and_faster_ones_before_slower_ones():
    found = search(space(base(), pdbs=8), top=10_000).found
    near = [one.is_borderline for one in found]
    assert near == sorted(near)
    speeds = [one.tokens_per_s_per_device for one in found if not one.is_borderline]
    assert all(a > b * 0.998 for a, b in itertools.pairwise(speeds))


def test_where_nothing_was_fitted_plans_are_in_the_order_of_fit():
    hopper = base(hardware=load_hardware("h200_sxm"))
    area = space(hopper, 256, remats=(FULL, Remat("none")), pdbs=1)
    result = search(area, top=10_000)
    assert (result.order, result.surest) == ("fit", None)
    keys = []
    for one in result.found:
        plan = one.setting.plan
        # By hand: full does the forward pass again, none nothing; H200 has 8 to a fast domain, and
        # TP's peers are nearest: 8 / TP expert ranks of one domain.
        domains = -(-plan.expert // max(8 // plan.tensor, 1))
        sharing = plan.tensor * plan.context * plan.pipeline
        again = plan.remat.text == "full"
        tokens = 4096 / sharing
        keys.append((one.is_borderline, again, sharing * domains, -tokens, -one.margin))
    assert keys == sorted(keys)
    assert search(area, top=3, order="time").order == "time"


def test_the_surest_plan_is_the_fastest_at_the_slow_end_of_its_band():
    result = search(space(base(), pdbs=7), top=10_000)
    slow = {
        one.setting.plan: one.tokens_per_s_per_device / estimate(one.setting).basis.band.high
        for one in result.found
        if not one.is_borderline
    }
    assert result.order == "time"
    assert result.surest is not None
    plan = result.surest.setting.plan
    assert slow[plan] == max(slow.values())
    # As the published runs were laid out: experts inside a machine, FSDP across.
    assert (plan.expert, plan.fsdp, plan.devices) == (8, 8, 64)
    assert result.found[0].setting.plan != plan


def test_the_surest_is_no_twin_of_a_plan_that_is_shown():
    """One that a device works alike in trades replicas for context parallelism alone."""

    def work(found) -> tuple[object, ...]:
        plan, setting = found.setting.plan, found.setting
        spread = plan.data * plan.fsdp * plan.context
        tokens = setting.pdbs * setting.sequence // plan.context
        other = (plan.expert, plan.tensor, plan.pipeline, plan.virtual, setting.microbatches)
        return setting.strategy.name, spread, tokens, *other

    result = search(space(base()), 5, order="time")
    shown = {work(one): one for one in result.found}
    assert len(result.sure) > 1
    assert len({work(one) for one in result.sure}) == len(result.sure)
    assert all(shown.get(work(one), one) is one for one in result.sure)


def test_a_run_of_ones_own_scales_times_and_ranks_by_them():
    hopper = base(hardware=load_hardware("h200_sxm"))
    area = space(hopper, 64, pdbs=1, allowed={"pipeline": frozenset({1})})
    run = TimedRun(
        "maxtext", "sparse-gmm-deepep", "full", "h200_sxm", hopper.model.name, ("fsdp", "expert"),
        measured_s=3.0, estimated_s=2.0, run="runs/one", steps=12,
    )  # fmt: skip
    plain, told = search(area, order="time"), search(area, runs=(run,))
    assert told.order == "time"
    for one, other in zip(plain.found, told.found, strict=True):
        assert other.setting == one.setting
        assert other.seconds == pytest.approx(1.5 * one.seconds)
        again = estimate(one.setting, runs=(run,))
        assert again.seconds == pytest.approx(other.seconds)
        assert sum(row.seconds for row in again.rows) == pytest.approx(again.seconds)
    other_device = replace(run, hardware="h100_sxm")
    assert search(area, runs=(other_device,)).order == "fit"


def test_the_band_of_a_calibrated_plan_is_as_near_as_the_run():
    here = base(hardware=load_hardware("h200_sxm"), plan=ParallelPlan(fsdp=8, expert=8))
    run = TimedRun(
        "maxtext", "sparse-gmm-deepep", "full", "h200_sxm", here.model.name, ("fsdp", "expert"),
        3.0, 2.0, "runs/one", 12,
    )  # fmt: skip
    dense = replace(here, strategy=parse_strategy("dense-cf1.25"))
    elsewhere = replace(here, plan=ParallelPlan(fsdp=8, expert=4, tensor=2))
    other_model = replace(here, model=load_preset("mixtral_8x7b"))
    bands = [basis_of(one, (run,)).band for one in (here, dense, elsewhere, other_model)]
    assert bands == [SAME_STRATEGY, OTHER_STRATEGY, OTHER_PLAN, OTHER_PLAN]
    assert basis_of(here).source == "assumed"
    assert basis_of(base()).source == "measured"
    assert basis_of(base(framework="megatron")).band == UNCHECKED
    # Of two runs the one of the plan's strategy counts, whichever was stored first.
    slower = replace(run, strategy="dense-cf1.25", measured_s=4.0)
    assert [basis_of(here, runs).factor for runs in ((run, slower), (slower, run))] == [1.5, 1.5]


def test_an_arena_that_a_run_showed_counts():
    area = space(base(), pdbs=4)
    one = search(area, top=1).found[0]
    key = (one.setting.strategy.name, one.setting.plan.remat.text)
    more = search(replace(area, arena={key: 0.9}), top=10_000)
    same = next(found for found in more.found if found.setting == one.setting)
    assert same.temp_bytes == pytest.approx(0.9 * one.temp_bytes, abs=1)
    assert same.margin > one.margin
    assert more.fitting >= search(area).fitting


def test_a_search_for_degrees_that_there_are_none_of():
    with pytest.raises(SpecError, match="64 devices cannot be laid out with"):
        search(space(base(), allowed={"expert": frozenset({3})}))


def test_a_search_needs_a_sequence():
    with pytest.raises(SpecError, match="expected a sequence length"):
        search(space(base(sequence=None)))


# What AMD's study of 768 GPUs concluded (ROCm/rocm-blogs, primus-moe-package, "Optimizing 1
# Trillion+ Parameter Models"), from the same candidates: PP 24 or 48, EP 8 or 16, CP 1 or 2, no
# recomputation.
STUDY = {
    ("moe_1t", "mi300x"): (24, 8, 2),
    ("moe_1t", "mi355x"): (24, 8, 1),
    ("moe_2t", "mi300x"): (24, 16, 2),
    ("moe_2t", "mi355x"): (24, 8, 2),
}


def study(name: str, hardware: str, account: str) -> Space:
    """The study's candidates. Its batch is not stated: DeepSeek-V3's 15,360 sequences.

    Its account is of tensors alone: 7 % of a device are left for communicators, context and cache,
    13 GiB in ours.
    """
    device = load_hardware(hardware)
    if account == "primus":
        device = replace(device, hbm_bytes=int(0.93 * device.hbm_bytes))
    setting = base(name, "megatron", hardware=device, megatron=MegatronOptions(account=account))
    return Space(
        setting,
        768,
        (setting.strategy,),
        (Remat("none"),),
        allowed={
            "pipeline": frozenset({24, 48}),
            "expert": frozenset({8, 16}),
            "context": frozenset({1, 2}),
            "tensor": frozenset({1}),
            "virtual": frozenset({2, 4}),
        },
        global_batch=15_360,
        pdbs=1,
    )


def best(area: Space) -> tuple[int, int, int] | None:
    """(PP, EP, CP) of the first plan found."""
    found = search(area, order="time").found
    if not found:
        return None
    plan = found[0].setting.plan
    return plan.pipeline, plan.expert, plan.context


@pytest.mark.parametrize(("case", "plan"), STUDY.items())
def test_the_conclusions_of_the_1t_and_2t_study_with_its_own_account(case, plan):
    assert best(study(*case, "primus")) == plan


@pytest.mark.parametrize(("case", "plan"), STUDY.items())
def test_the_conclusions_of_the_1t_and_2t_study_with_our_account(case, plan):
    assert best(study(*case, "megatron")) == plan


def test_moe_2t_on_mi300x_may_not_fit():
    """Float32 gradients and masters: above the pool, by less than the account's error."""
    found = search(study("moe_2t", "mi300x", "megatron"))
    assert found.fitting == found.borderline
    assert found.found[0].margin < 0


def test_what_the_study_says_of_memory():
    area = study("moe_1t", "mi355x", "megatron")
    sizes = {}
    for context, expert, pipeline, virtual in ((1, 8, 24, 4), (2, 8, 24, 4), (1, 16, 24, 4),
                                               (1, 8, 48, 2)):  # fmt: skip
        data = 768 // pipeline // context
        plan = ParallelPlan(
            data=data,
            expert=expert,
            context=context,
            pipeline=pipeline,
            virtual=virtual,
            remat=Remat("none"),
        )
        one = replace(area.base, plan=plan, pdbs=1, microbatches=15_360 // data)
        sizes[context, expert, pipeline] = project(one).temp_bytes or 0
    whole = sizes[1, 8, 24]
    assert sizes[2, 8, 24] == pytest.approx(whole / 2, rel=0.02)  # CP2 halves activations
    assert sizes[1, 16, 24] == pytest.approx(whole, rel=0.02)  # more EP does not lower them
    assert sizes[1, 8, 48] > whole * 1.15  # more stages raise them


def test_degrees_of_a_found_plan_are_its_own():
    found = search(space(base(), pdbs=4), top=1).found[0]
    assert degrees_of(found.setting).pdbs == 4
    assert found.setting.plan.devices == 64


@pytest.mark.parametrize("framework", ["megatron", "maxtext"])
@pytest.mark.parametrize(("schedule", "chunks"), [("zb-h1", 1), ("zbv", 2), ("v-min", 2)])
def test_schedules_that_split_backward_work_have_their_number_of_chunks(
    framework, schedule, chunks
):
    setting = base(framework=framework, schedule=schedule)
    found = search(space(setting, pdbs=1, allowed={"pipeline": frozenset({1, 8})}), 1000).found
    assert {(f.setting.plan.pipeline, f.setting.plan.virtual) for f in found} == {
        (1, 1),
        (8, chunks),
    }
