"""The memory of a captured program, and why one of a CPU corrects no projection of a GPU."""

from __future__ import annotations

import pytest

from moeprof.projector.calibrate import calibrate, measured
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy


@pytest.fixture
def run(capture):
    return measured(capture("plain_loop.py").run_dir)


def test_a_captured_step_is_measured_and_a_cpu_corrects_no_gpu(run):
    # weights 64 x 64 and batch 32 x 64 in float32; the result is as large as the weights
    assert run.program == "jit_train_step"
    assert run.args_bytes == 4 * (64 * 64 + 32 * 64)
    assert run.results_bytes == 4 * 64 * 64
    assert (run.platform, run.hardware) == ("cpu", "")
    hardware, plan = load_hardware("h100_sxm"), ParallelPlan(expert=8)
    setting = Setting(load_preset("mixtral_8x7b"), plan, parse_strategy("sparse-gmm"), hardware)
    refusal = calibrate(project(setting), run).refusal
    assert refusal is not None
    assert "an arena of another compiler corrects nothing" in refusal
