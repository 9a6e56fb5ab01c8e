"""What must hold of a step's time whatever the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.projector.setting import Setting
from moeprof.projector.step_time import estimate
from moeprof.projector.step_time.rates import Tuning
from moeprof.specs.hardware import hardware_keys, load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset, preset_names
from moeprof.specs.remat import POLICIES, Remat
from moeprof.specs.strategy import parse_strategy

STRATEGIES = ("dense-cf1.25", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot")


def exists(hardware: str, strategy: str, framework: str) -> bool:
    """DeepEP and Megatron-LM run on GPUs alone; `Setting` refuses them elsewhere."""
    is_tpu = hardware.startswith("tpu")
    return not (is_tpu and (framework == "megatron" or strategy == "sparse-gmm-deepep"))


def run(name: str, hardware: str, strategy: str, framework: str, **changes: object) -> Setting:
    """Eight devices, experts spread over them where there are any."""
    model = load_preset(name)
    spread = 8 if model.experts and model.experts % 8 == 0 else 1
    plan = ParallelPlan(fsdp=8 // spread, expert=spread)
    if framework == "megatron":
        plan = ParallelPlan(data=8, expert=spread)
    base = Setting(
        model, plan, parse_strategy(strategy), load_hardware(hardware), pdbs=2, framework=framework
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("framework", ["maxtext", "megatron"])
def test_every_model_and_device_has_an_estimate_whose_rows_add_up(name, framework):
    for hardware in hardware_keys():
        for strategy in STRATEGIES:
            if not exists(hardware, strategy, framework):
                continue
            found = estimate(run(name, hardware, strategy, framework))
            assert 0 < found.seconds < 1e7
            assert all(row.seconds >= 0 and row.hidden_s >= 0 for row in found.rows)
            assert sum(row.seconds for row in found.rows) == pytest.approx(found.seconds)
            assert 0 < found.mfu < 1
            assert abs(found.bubble) < 1e-9


runs = (
    st.tuples(
        st.sampled_from(["deepseek_v3", "mixtral_8x7b", "qwen3_next_80b_a3b", "llama4_maverick"]),
        st.sampled_from(["mi355x", "h100_sxm", "gb200", "tpu_v5p"]),
        st.sampled_from(STRATEGIES),
        st.sampled_from(["maxtext", "megatron"]),
    )
    .filter(lambda choice: exists(*choice[1:]))
    .map(lambda choice: run(*choice))
)


@given(runs, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_more_sequences_never_take_less_time(setting, more):
    larger = replace(setting, pdbs=setting.pdbs + more)
    assert estimate(larger).seconds > estimate(setting).seconds


@given(runs, st.sampled_from([*sorted(POLICIES), "full"]))
@settings(max_examples=60, deadline=None)
def test_recomputing_never_takes_less_time(setting, policy):
    none = replace(setting, plan=replace(setting.plan, remat=Remat("none")))
    some = replace(setting, plan=replace(setting.plan, remat=Remat(policy)))
    full = replace(setting, plan=replace(setting.plan, remat=Remat("full")))
    times = [estimate(one).seconds for one in (none, some, full)]
    assert times[0] <= times[1] * (1 + 1e-12)
    assert times[1] <= times[2] * (1 + 1e-12)


@given(runs, st.integers(2, 16))
@settings(max_examples=40, deadline=None)
def test_hiding_the_exchange_never_takes_more_time(setting, microbatches):
    several = replace(setting, microbatches=microbatches)
    hidden = estimate(several, Tuning(overlaps_exchange=True))
    assert hidden.seconds <= estimate(several).seconds * (1 + 1e-12)


@given(runs, st.floats(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_fuller_rank_never_takes_less_time(setting, overload):
    even, fuller = replace(setting, overload=1.0), replace(setting, overload=overload)
    assert estimate(fuller).seconds >= estimate(even).seconds * (1 - 1e-12)


@given(runs)
@settings(max_examples=30, deadline=None)
def test_useful_work_is_that_of_the_tokens_whatever_is_done_besides(setting):
    found, full = (
        estimate(replace(setting, plan=replace(setting.plan, remat=Remat(text))))
        for text in ("none", "full")
    )
    per_token = found.mfu / found.tokens_per_s_per_device
    assert full.mfu / full.tokens_per_s_per_device == pytest.approx(per_token)
