"""The bundled model's step in closed form against what XLA lays out for it, on 450 cases."""

import importlib.util
import json
import statistics
import sys
from collections import defaultdict
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


@pytest.fixture(scope="module")
def libraries(benchmark: ModuleType) -> list[Any]:
    path = BENCHMARKS / "results" / benchmark.ENDS["libraries"]
    lines: list[Any] = benchmark.read_lines(path, "libraries")
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


def test_steps_with_libraries_products_are_projected_by_their_own_end(
    benchmark: ModuleType, libraries: list[Any]
) -> None:
    """Of the half not used for counts; arguments are those of the same steps by Triton."""
    figures = benchmark.figures(one for one in libraries if one.split == "test")
    assert figures["cases"] >= 200
    assert figures["median_abs_error"] <= 0.04
    assert abs(figures["median_error"]) <= 0.01
    assert all(one.args == one.projected.args_bytes for one in libraries)


def test_plans_lie_between_both_ends(
    benchmark: ModuleType, scored: list[Any], libraries: list[Any]
) -> None:
    """At most one in ten of each kind of plan, of those that take a quarter of the pool."""
    beyond: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for one in (*scored, *libraries):
        found = one.projected
        if found.temp_bytes >= found.pool_bytes / 4:
            least, most = found.inside_range_bytes
            is_beyond = not least <= one.args + one.temp <= most
            beyond[one.case.parsed_strategy.kind, one.end].append(is_beyond)
    assert len(beyond) == 8
    for kind, found in beyond.items():
        assert len(found) >= 10, kind
        assert sum(found) <= 0.1 * len(found), kind


def test_the_committed_result_is_todays(
    benchmark: ModuleType, scored: list[Any], libraries: list[Any]
) -> None:
    committed = (BENCHMARKS / "results" / "memory_closed_form.json").read_text(encoding="utf-8")
    today = benchmark.summary(scored)
    today["libraries"] = benchmark.of_libraries(libraries)
    today["measured"] = benchmark.read_measured(BENCHMARKS / "results" / "gpu_memory.json")
    assert json.loads(committed) == json.loads(json.dumps(today))


def test_steps_that_ran_on_gpus(benchmark: ModuleType) -> None:
    """Two H200: arguments are equal, half of the peaks within 6 %, all but one in the range."""
    found = benchmark.read_measured(BENCHMARKS / "results" / "gpu_memory.json")
    assert len(found) >= 12
    assert all(one["args_are_equal"] for one in found)
    assert statistics.median(abs(one["error"]) for one in found) <= 0.06
    ranges = ((*one["range_bytes"], one["allocator_peak_bytes"]) for one in found)
    assert sum(not least <= peak <= most for least, most, peak in ranges) <= 1
