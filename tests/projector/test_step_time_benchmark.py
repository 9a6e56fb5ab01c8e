"""The committed scores of the step-time estimate are those of the committed data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from moeprof.projector.step_time.rates import band_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("step_time", ROOT / "benchmarks/step_time.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result() -> dict:
    return json.loads((ROOT / "benchmarks/results/step_time.json").read_text(encoding="utf-8"))


def test_the_result_is_reproduced(benchmark, result):
    rows = benchmark.scored()
    assert rows == result["rows"]
    assert benchmark.summary(rows) == result["families"]


def test_what_was_reached(result):
    fitted = result["families"]["amd_maxtext_deepseek_v3"]
    assert fitted["median_absolute_error"] < 0.05
    assert fitted["largest_absolute_error"] < 0.10
    assert (fitted["pairs_in_the_wrong_order"], fitted["pairs"]) == (0, 30)
    # Not fitted, and short of what small models wait for: said by the band, not hidden.
    assert result["families"]["nvidia_megatron_bridge"]["median_error"] < 0.5


def test_ten_thousand_plans_take_less_than_five_seconds(result):
    search = result["search"]
    assert 10_000 / search["projected"] * search["processor_seconds"] < 5


def test_bands_hold_what_was_measured(benchmark, result):
    settings = [setting for _, setting, _ in benchmark.own_runs()]
    settings += [benchmark.setting_of(row) for row in benchmark.read()]
    inside: dict[str, list[bool]] = {}
    for row, setting in zip(result["rows"], settings, strict=True):
        if row["unit"] != "share":
            ratio = row["projected"] / row["measured"]  # of seconds: measured over estimated
            band = band_of(setting)
            inside.setdefault(row["family"], []).append(band.low * 0.99 < ratio < band.high)
    assert all(inside["amd_maxtext_deepseek_v3"])
    assert all(inside["moeprof_bundled_h200"])
    held = inside["nvidia_megatron_bridge"]
    assert sum(held) / len(held) > 0.8
