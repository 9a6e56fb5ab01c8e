"""The grid of compilations: the same cases everywhere, and results of those cases."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def grid():
    sys.path.insert(0, str(BENCHMARKS))
    import memory_grid_cases

    yield memory_grid_cases
    sys.path.remove(str(BENCHMARKS))


def test_cases_are_those_of_the_results_and_split_by_their_hash(grid):
    found = {case.key: case for case in grid.cases()}
    text = (BENCHMARKS / "results" / "memory_grid.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    keys = [line["key"] for line in lines]
    assert set(keys) <= set(found)
    assert len(set(keys)) == len(keys) >= 450
    for line in lines:
        assert line["split"] == ("test" if int(line["key"], 16) % 2 else "fit")
    # Enough that no count was chosen by.
    assert Counter(line["split"] for line in lines)["test"] >= 200


def test_every_strategy_has_as_many_cases(grid):
    assert set(Counter(case.strategy for case in grid.cases()).values()) == {76}


def test_received_rows_by_hand(grid):
    first = next(c for c in grid.cases() if c.strategy == "sparse-gmm")
    tokens, local = first.pdbs * first.sequence, first.experts // first.expert
    assert grid.received_rows(first) == first.expert * tokens * min(local, first.top_k)
