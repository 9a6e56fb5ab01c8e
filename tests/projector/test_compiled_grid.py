"""The bundled model's step in closed form against what XLA lays out for it, on 450 cases."""

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        path = BENCHMARKS / "memory_closed_form.py"
        spec = importlib.util.spec_from_file_location("memory_closed_form", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def scored(benchmark: ModuleType) -> list[Any]:
    lines: list[Any] = benchmark.read_lines(BENCHMARKS / "results" / "memory_grid.jsonl")
    return lines


def test_arguments_are_equal_to_the_byte(scored: list[Any]) -> None:
    assert len(scored) == 450
    assert all(one.args == one.projected.args_bytes for one in scored)


def test_the_half_not_used_for_counts_is_projected_within_what_is_published(
    benchmark: ModuleType, scored: list[Any]
) -> None:
    figures = benchmark.figures(one for one in scored if one.split == "test")
    assert figures["cases"] >= 200
    assert figures["median_abs_error"] <= 0.045
    assert figures["p95_abs_error"] <= 0.17
    assert abs(figures["median_error"]) <= 0.01


def test_the_committed_result_is_todays(benchmark: ModuleType, scored: list[Any]) -> None:
    committed = (BENCHMARKS / "results" / "memory_closed_form.json").read_text(encoding="utf-8")
    today = benchmark.summary(scored)
    today["measured"] = benchmark.read_measured(BENCHMARKS / "results" / "gpu_memory.json")
    assert json.loads(committed) == json.loads(json.dumps(today))


def test_steps_that_ran_on_gpus(benchmark: ModuleType) -> None:
    """Two H200: arguments are equal, and half of the peaks are within 6 %."""
    found = benchmark.read_measured(BENCHMARKS / "results" / "gpu_memory.json")
    assert len(found) >= 12
    assert all(one["args_are_equal"] for one in found)
    assert statistics.median(abs(one["error"]) for one in found) <= 0.06
