"""The committed scores of the step-time estimate are those of the committed data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from moeprof.projector import step_time

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
            band = step_time.basis_of(setting).band
            inside.setdefault(row["family"], []).append(band.low * 0.99 < ratio < band.high)
    assert all(inside["amd_maxtext_deepseek_v3"])
    assert all(inside["moeprof_bundled_h200"])
    held = inside["nvidia_megatron_bridge"]
    assert sum(held) / len(held) > 0.8


def test_bands_are_the_errors_rounded_outwards(benchmark, result):
    assert benchmark.bands() == result["bands"]
    assert {name: list(getattr(step_time, name)) for name in result["bands"]} == result["bands"]
    # By hand: of one strategy on MI355X the rows furthest apart are dense-cf1.25 at pdbs 4,
    # measured over estimated 1049.4 / 961.1, and at pdbs 9, 1294.7 / 1399.0: 1.180 times.
    errors = {row["run"]: 1 + row["error"] for row in result["rows"]}
    four, nine = (errors[f"deepseek_v3 mi355x dense-cf1.25 pdbs {pdbs}"] for pdbs in (4, 9))
    assert four / nine == pytest.approx((1049.4 / 961.1) / (1294.7 / 1399.0), abs=1e-3)
    assert 1.1 < four / nine < step_time.SAME_STRATEGY.high
    # Nothing to compare with: as far off as NVIDIA's, either way.
    assert step_time.UNCHECKED.high == step_time.ASSUMED.high
    assert step_time.UNCHECKED.low <= 1 / step_time.ASSUMED.high < step_time.UNCHECKED.low + 0.1
