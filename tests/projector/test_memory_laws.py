"""What must hold of memory whatever the run: what splits, keeps or narrows something never adds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.memory import project, project_many
from moeprof.projector.setting import Precision, Setting, degrees_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

WIDE = Precision(
    weights="float32", first_moment="float32", second_moment="float32", gradients="float32"
)
POLICIES = ("full", "save_out_proj", "save_dot_except_mlp", "save_dot_except_mlpwi", "minimal")
KEEPING = (*POLICIES, "minimal_with_context", "none")
MODELS = ("deepseek_v3", "mixtral_8x7b", "gpt_oss_120b", "qwen3_30b_a3b", "llama4_maverick")
STRATEGIES = ("dense-cf1.25", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot")
runs = st.builds(
    lambda model, framework, strategy, fsdp, expert, policy, attention, precision: Setting(
        load_preset(model),
        ParallelPlan(fsdp=fsdp, expert=expert, remat=Remat(policy)),
        parse_strategy(strategy),
        load_hardware("mi355x"),
        pdbs=2,
        framework=framework[0],
        maxtext_build=framework[1],
        attention=attention,
        precision=precision,
    ),
    st.sampled_from(MODELS),
    st.sampled_from([("maxtext", "rocm-26.2"), ("maxtext", "0.2.5"), ("bundled", None)]),
    st.sampled_from(STRATEGIES),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(KEEPING),
    st.sampled_from(["flash", "whole"]),
    st.sampled_from([Precision(), WIDE]),
)
laws = settings(max_examples=40, deadline=None)


def with_plan(setting: Setting, **changes: object) -> Setting:
    return replace(setting, plan=replace(setting.plan, **changes))


def sizes(setting: Setting) -> tuple[int, int]:
    found: MemoryBreakdown = project(setting)
    assert found.args_bytes is not None
    assert found.temp_bytes is not None
    return found.args_bytes, found.temp_bytes


def is_no_more(less: Setting, more: Setting) -> None:
    (args, temp), (most_args, most_temp) = sizes(less), sizes(more)
    assert args <= most_args
    assert temp <= most_temp


@given(runs)
@laws
def test_twice_the_sequences_take_more_and_at_most_twice_the_arena(setting: Setting) -> None:
    twice = replace(setting, pdbs=4)
    is_no_more(setting, twice)
    assert sizes(twice)[1] <= 2 * sizes(setting)[1]


@given(runs, st.sampled_from(["fsdp", "tensor", "context"]))
@laws
def test_what_is_split_further_never_takes_more(setting: Setting, axis: str) -> None:
    if setting.framework == "bundled" and axis != "fsdp":
        return  # its program has no such axis
    is_no_more(with_plan(setting, **{axis: 2 * getattr(setting.plan, axis)}), setting)


@given(runs)
@laws
def test_experts_spread_further_leave_fewer_weights(setting: Setting) -> None:
    assert sizes(with_plan(setting, expert=2 * setting.plan.expert))[0] <= sizes(setting)[0]


@given(runs)
@laws
def test_a_policy_that_keeps_more_never_takes_less(setting: Setting) -> None:
    for less, more in pairwise(KEEPING):
        is_no_more(with_plan(setting, remat=Remat(less)), with_plan(setting, remat=Remat(more)))


@given(runs)
@laws
def test_what_saves_memory_never_takes_more(setting: Setting) -> None:
    is_no_more(replace(setting, vocab_tiling=4), setting)
    is_no_more(replace(setting, offload=frozenset({"activations"})), setting)
    is_no_more(replace(setting, offload=frozenset({"optimizer"})), setting)
    is_no_more(setting, replace(setting, microbatches=4))
    is_no_more(replace(setting, attention="flash"), replace(setting, attention="whole"))
    for optimizer in ("sgd", "adafactor", "muon"):
        assert sizes(replace(setting, optimizer=optimizer))[0] <= sizes(setting)[0]


@given(runs, st.floats(1, 4), st.floats(1, 4))
@laws
def test_larger_buffers_never_take_less(setting: Setting, one: float, other: float) -> None:
    low, high = sorted((one, other))
    is_no_more(replace(setting, overload=low), replace(setting, overload=high))
    is_no_more(
        replace(setting, ragged_buffer_factor=low), replace(setting, ragged_buffer_factor=high)
    )
    is_no_more(
        replace(setting, strategy=parse_strategy(f"dense-cf{low:.2f}")),
        replace(setting, strategy=parse_strategy(f"dense-cf{high:.2f}")),
    )


@given(runs)
@laws
def test_narrower_formats_never_take_more(setting: Setting) -> None:
    is_no_more(replace(setting, precision=Precision()), replace(setting, precision=WIDE))
    fp8 = replace(setting.precision, experts="float8_e4m3fn")
    is_no_more(replace(setting, precision=fp8), setting)


@pytest.mark.parametrize("hardware", ["h100_sxm", "mi355x"])
@pytest.mark.parametrize("name", ["maxtext", "bundled", "megatron"])
@pytest.mark.parametrize("strategy", ["dense-cf1.25", "sparse-gmm", "sparse-ragged-dot"])
def test_more_sequences_never_need_less(name: str, hardware: str, strategy: str) -> None:
    """As the search for the largest batch takes for granted."""
    plan = {"data": 64, "expert": 8} if name == "megatron" else {"fsdp": 8, "expert": 8}
    of = Setting(
        load_preset("qwen3_30b_a3b"),
        ParallelPlan(**plan),
        parse_strategy(strategy),
        load_hardware(hardware),
        sequence=1024,
        pdbs=1,
        framework=name,
    )
    sizes = project_many(of, degrees_of(of)._replace(pdbs=np.arange(1, 200)))
    assert (np.diff(sizes.args + sizes.temp) >= 0).all()
