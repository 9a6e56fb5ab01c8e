import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.communication.waits import NONE
from moeprof.analyzers.drawings.wait_map import wait_map
from moeprof.analyzers.questions.stragglers import stragglers
from moeprof.answers import cells as module
from moeprof.answers.cells import per_cell

OPS = (hlo("x", "parameter", size_bytes=8, shape="f32[2]"), hlo("sent", "all-to-all", "x"))
LATE = ((0, 30, 70), (0, 50, 10), (40, 0, 0))
"""By step, when each of three devices comes to the exchange, which ends for all 10 ns later."""


def arriving(*steps):
    work = [
        kernel("sent", 1000 * step + at, max(starts) + 10 - at, step=step, device=device)
        for step, starts in enumerate(steps)
        for device, at in enumerate(starts)
    ]
    return traced(work, OPS)


def cells(analysis):
    return {(r.rank, r.step): (r.wait_ns, r.late_ns) for r in analysis.table.itertuples()}


def test_a_rank_waits_for_the_last_and_the_last_is_charged_with_the_mean():
    assert cells(wait_map(arriving(*LATE))) == {
        (0, 0): (70, 0), (1, 0): (40, 0), (2, 0): (0, 55),
        (0, 1): (50, 0), (1, 1): (0, 45), (2, 1): (40, 0),
        (0, 2): (0, 40), (1, 2): (40, 0), (2, 2): (40, 0),
    }  # fmt: skip


def test_sums_are_those_of_the_stragglers():
    trace = arriving(*LATE)
    found = wait_map(trace).table.groupby("rank")[["wait_ns", "late_ns"]].mean()
    summed = stragglers(trace).table.set_index("rank").sort_index()
    assert found["wait_ns"].tolist() == pytest.approx(summed["waits_ns"].tolist())
    assert found["late_ns"].tolist() == pytest.approx(summed["waited_for_ns"].tolist())


def test_steps_that_share_a_cell_are_averaged(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 6)
    found = wait_map(arriving(*LATE))
    assert cells(found) == {
        (0, 0): (60, 0), (1, 0): (20, 22.5), (2, 0): (20, 27.5),
        (0, 2): (0, 40), (1, 2): (40, 0), (2, 2): (40, 0),
    }  # fmt: skip
    assert found.notes[0] == "a cell is the mean of 2 steps in a row"


@pytest.mark.parametrize(("ranks", "steps", "bundle"), [(8, 10, 1), (512, 100, 2), (99_999, 3, 3)])
def test_cells_are_few_enough(ranks, steps, bundle):
    assert per_cell(ranks, steps) == bundle


def test_of_hosts_without_a_common_clock_nothing_is_said():
    work = [kernel("sent", 0, 90), kernel("sent", 50, 40, host="b")]
    found = wait_map(traced(work, OPS))
    assert found.table.empty
    assert "not aligned" in found.notes[0]


def test_without_steps_the_capture_is_one():
    work = [kernel("sent", at, 100 - at, device=n, step=-1) for n, at in enumerate((0, 30))]
    assert cells(wait_map(traced(work, OPS, {}))) == {(0, -1): (30, 0), (1, -1): (0, 30)}


def test_without_a_collective_it_says_so():
    found = wait_map(traced([kernel("x", 0, 10)], OPS))
    assert (found.table.empty, found.notes) == (True, (NONE,))
