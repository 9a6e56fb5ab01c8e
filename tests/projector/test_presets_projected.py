"""Every model known by name can be projected in every framework, and no weight is lost."""

from __future__ import annotations

import pytest

from moeprof.projector.framework import FRAMEWORKS
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.parameters import parameter_count
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset, preset_names
from moeprof.specs.strategy import Strategy

BFLOAT16_BYTES = 2


def projected(name: str, framework: str):
    return project(
        Setting(
            model=load_preset(name),
            plan=ParallelPlan(),
            strategy=Strategy("sparse-gmm"),
            hardware=load_hardware("h100_sxm"),
            framework=framework,
        )
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", preset_names())
def test_one_device_holds_all_weights(name, framework):
    breakdown = projected(name, framework)
    weights = [row for row in breakdown.worst.args if row.kind == "params"]
    # The bundled model keeps the biases that balance its router in float32.
    held = sum(
        int(row.size_bytes or 0) // (4 if row.name == "router biases" else BFLOAT16_BYTES)
        for row in weights
        if "master" not in row.name
    )
    assert held == parameter_count(load_preset(name))
    assert breakdown.verdict != "unknown"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_linear_layer_keeps_is_said_to_be_unknown(framework):
    (note,) = (n for n in projected("qwen3_next_80b_a3b", framework).notes if "linear" in n)
    assert note.startswith("the 36 layers of linear attention have weights of their own")
