"""The largest batch that fits, found without trying every one."""

import pytest
from builders.memory import GIB, breakdown, setting

from moeprof.projector.batches import BOUND, Reach, at_pdbs, reach, worth_showing


def at(gib_each: float, asked: list[int] | None = None):
    """72 GiB of pool, of which each sequence takes some."""

    def project(run):
        if asked is not None:
            asked.append(run.pdbs)
        return breakdown(run, temp=int(run.pdbs * gib_each * GIB))

    return at_pdbs(setting(), project)


@pytest.mark.parametrize(
    ("gib_each", "expected"),
    [
        (10, Reach(7, 6)),  # 70 GiB is 2.8 % below 72: borderline
        (73, Reach(1, 0)),  # 1.4 % above: borderline
        (100, Reach(0, 0)),
        (1 / 1024, Reach(BOUND, BOUND)),
    ],
)
def test_the_largest_is_that_of_a_search_one_by_one(gib_each, expected):
    found = reach(at(gib_each))
    assert found == expected
    slow = [n for n in range(1, 100) if at(gib_each)(n).verdict != "oom"]
    assert (found.largest or 0) == (BOUND if found.is_bound else max(slow, default=0))


def test_no_batch_is_computed_twice():
    asked: list[int] = []
    reach(at(1.0, asked))
    assert len(asked) == len(set(asked)) < 20


def test_an_unknown_size_leaves_the_largest_unknown():
    assert reach(lambda pdbs: breakdown(setting(pdbs=pdbs), temp=None)) == Reach(None, None)


def test_limits_and_one_beyond_are_worth_showing():
    assert worth_showing([Reach(9, 9), Reach(7, 6), Reach(0, 0)], 6) == [1, 4, 7, 8, 9, 10]
    assert worth_showing([Reach(9, 9), Reach(7, 6), Reach(0, 0)], 3) == [1, 7, 9]
    assert worth_showing([Reach(None, None)], 6) == [1]
    assert worth_showing([Reach(BOUND, BOUND)], 6) == [1, BOUND // 2, BOUND]
