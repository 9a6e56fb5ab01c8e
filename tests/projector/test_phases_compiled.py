"""Evaluation and start in closed form against XLA's plans of those programs."""

import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moeprof.projector.memory import project

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import memory_phases

        return memory_phases
    finally:
        sys.path.remove(str(BENCHMARKS))


def compiled_steps(name: str, size: str) -> dict[str, int]:
    """A size of each step of a grid by its key."""
    lines = (BENCHMARKS / "results" / name).read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return {line["key"]: line[size] for line in found if "error" not in line}


@pytest.mark.parametrize(
    ("framework", "splits", "cases", "median", "largest", "within"),
    [
        ("bundled", ("test",), 42, 1e-4, 0.43, 39),
        ("maxtext", ("test", "later"), 20, 0.025, 0.21, 19),
    ],
)
def test_evaluations_that_were_held_out_are_as_published(
    benchmark: ModuleType,
    framework: str,
    splits: tuple[str, ...],
    cases: int,
    median: float,
    largest: float,
    within: int,
):
    found = benchmark.scores()
    chosen = [one for one in found if one.framework == framework and one.split in splits]
    errors = [abs(one.error) for one in chosen]
    assert len(errors) >= cases
    assert statistics.median(errors) <= median
    assert max(errors) <= largest
    assert sum(error <= 0.1 for error in errors) >= within


def test_a_start_makes_what_a_step_is_given_and_little_beside_it(benchmark: ModuleType):
    """Weights and moments, of the bundled model these alone, and a few keys and counters."""
    starts = [line for line in benchmark.read() if line["phase"] == "start"]
    given = compiled_steps("maxtext_grid.jsonl", "argument_bytes")
    assert len(starts) >= 20
    for line in starts:
        case, name = line["case"], line["framework"]
        found = project(benchmark.setting_of(line)).others
        start = next(one for one in found if one.name == "start")
        made = {"maxtext": ("params", "optimizer"), "bundled": ("optimizer",)}[name]
        state = sum(row.size_bytes or 0 for row in start.args if row.kind in made)
        assert line["output_bytes"] == pytest.approx(state, rel=0.01)
        assert line["temp_bytes"] < 40_000
        if name == "maxtext":
            tokens = case["pdbs"] * case["sequence"] * 4  # a step reads four or five such arrays
            more = line["output_bytes"] - given[line["key"]] + 4 * tokens
            assert -1000 <= more <= tokens + 1000


def test_an_evaluation_takes_less_than_a_step_of_the_same_batch(benchmark: ModuleType):
    """Where both were compiled; so it decides only with a batch of its own."""
    steps = compiled_steps("memory_grid.jsonl", "temp_bytes")
    shares = [one.compiled / steps[one.key] for one in benchmark.scores() if one.key in steps]
    assert len(shares) >= 90
    assert max(shares) < 0.9
    assert statistics.median(shares) == pytest.approx(0.30, abs=0.01)
