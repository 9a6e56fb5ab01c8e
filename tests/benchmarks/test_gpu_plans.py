"""`benchmarks/gpu/plans.py`: a plan and a run of one step meet, and what is said of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest


@pytest.fixture
def plans(program):
    return program("gpu.plans")


def tiny(name, smoke):
    """A step of one product, bf16 [64, 64] given up, and tokens that it sums."""
    steps = sys.modules["gpu.plans_steps"]
    step = jax.jit(lambda state, tokens: (state @ state, tokens.sum()), donate_argnums=0)

    def drawn():
        return jnp.ones((64, 64), jnp.bfloat16), jnp.ones(10, jnp.int32)

    return steps.Case(step, jax.eval_shape(drawn), drawn)


def test_a_step_is_planned_and_run(plans, monkeypatch):
    folder = Path(os.environ.get("MOEPROF_CUDA_PLUGIN", Path(sys.prefix) / "cuda-plugin"))
    if not (folder / "jax_plugins").is_dir():
        pytest.skip(f"no CUDA plugin of JAX in {folder}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plans, "made", tiny)
    planned, ran = plans.plan_here("tiny", smoke=True), plans.run_here("tiny", smoke=True)
    assert planned["argument_bytes"] == ran["real_argument_bytes"] == 64 * 64 * 2 + 10 * 4
    assert planned["flops"] == 2 * 64**3
    assert len(ran["steps_s"]) == plans.MEMORY_STEPS + plans.TIMED_STEPS
    assert ran["told"] == [10]
    found = plans.compared(planned, ran)
    assert found["arguments_are_equal"]
    assert found["is_above_least"]
    assert found["peak_error"] is found["beyond_range"] is None  # the CPU keeps no account
    assert plans._beyond([90, 110], 100) == 0
    assert (plans._beyond([90, 96], 100), plans._beyond([105, 110], 100)) == (0.04, 0.05)
    assert found["planning_left_allocator_alone"]
    assert "–" in plans.line_of("tiny", {"plan": planned, "run": ran, "compared": found})


def test_the_step_of_plain_jax_returns_a_state_like_its_own(plans):
    case = plans.made("plain", smoke=True)
    state, loss = jax.eval_shape(case.step, *case.like)
    assert (state, loss.shape) == (case.like[0], ())
    # two layers of bf16 weights, two moments of each, and the optimizer's count
    attention, experts = 32 * 96 + 32 * 32, 32 * 4 + 3 * 4 * 32 * 16
    weights = 2 * 256 * 32 + 2 * (attention + experts)
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)]
    assert sum(sizes) == 3 * 2 * weights + 4


def test_the_peak_is_that_of_the_steps(plans):
    before = {"bytes_in_use": 130, "peak_bytes_in_use": 400}
    found = plans._peak(before, {"bytes_in_use": 130, "peak_bytes_in_use": 500}, 100)
    assert found == {"peak_bytes": 470, "beside_bytes": 30, "is_of_steps": True}
    assert not plans._peak(before, before, 100)["is_of_steps"]


def test_what_failed_or_was_left_out_is_said(plans, monkeypatch):
    assert plans.in_process("run", "plain", 0, smoke=True)["failed"].startswith("not started")
    row = plans.row_of("plain", {"failed": "why"}, 1, smoke=True)
    assert plans.line_of("plain", row).split(maxsplit=1)[1] == "failed: plan: why"
    steps = sys.modules["gpu.plans_steps"]
    monkeypatch.setattr(steps.importlib.util, "find_spec", lambda name: None)
    assert [steps.why_absent(name) for name in ("nnx", "plain")] == ["flax is not installed", ""]


def test_a_whole_run_is_compared_with_the_range_of_its_plan(program):
    runs = program("gpu.whole_runs")
    plan = {"program": "train_step", "argument_bytes": 10, "temp_bytes": 90}
    plan |= {"range_bytes": [100, 120]}
    run = {"program": "jit_train_step", "argument_bytes": 10, "temp_bytes": 100, "peak_bytes": 125}
    found = runs.compared(plan, run)
    assert found == {
        "is_same_program": True,
        "arguments_are_equal": True,
        "temp_error": -0.1,
        "beyond_range": 0.04,  # 5 of 125
        "most_error": -0.04,
    }
    assert runs.compared(plan, {**run, "peak_bytes": 110})["beyond_range"] == 0
    assert runs.compared(plan, {**run, "peak_bytes": None})["beyond_range"] is None
    case = runs.made("plain", 2)
    assert case.planning[:3] == ("--script", "examples/third_party_moe.py", "--")
    assert case.planning[3:] == case.running[1:]
