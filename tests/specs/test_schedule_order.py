import itertools

import pytest

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import Times, earliest_starts, order_of_work


def names(schedule, stage):
    """``F0`` and ``B0`` by microbatch, with the chunk behind where there are several."""
    more = schedule.chunks > 1
    return " ".join(
        f"{'B' if p.is_backward else 'F'}{p.microbatch}" + (f".{p.chunk}" if more else "")
        for p in order_of_work(schedule, stage)
    )


def test_1f1b_runs_fewer_forwards_ahead_the_later_the_stage():
    schedule = Schedule("1f1b", 3, 4)
    assert names(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert names(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_runs_backward_in_reverse():
    assert names(Schedule("gpipe", 2, 3), 1) == "F0 F1 F2 B2 B1 B0"


def test_interleaved_takes_as_many_microbatches_of_a_chunk_as_stages():
    """Stage 1 of 2 runs (2 − 1) · 2 = 2 forwards ahead."""
    expected = "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"
    assert names(Schedule("interleaved", 2, 2, 2), 1) == expected


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("gpipe", 4, 8),
        Schedule("1f1b", 4, 8),
        Schedule("1f1b", 8, 16),
        Schedule("1f1b", 4, 2),
        Schedule("circular", 4, 8, 2),
        Schedule("interleaved", 4, 8, 2),
        Schedule("interleaved", 8, 16, 3),
        Schedule("1f1b", 1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("times", [Times(10, 10), Times(10, 20)])
def test_played_through_each_schedule_has_the_bubble_of_its_formula(schedule, times):
    starts = earliest_starts(schedule, times)
    whole = max(start + times[piece.is_backward] for piece, start in starts.items())
    work = schedule.rounds * sum(times)
    assert (whole - work) / whole == pytest.approx(schedule.bubble)
    assert len(starts) == schedule.stages * schedule.rounds * 2


def test_no_piece_begins_before_its_stage_is_free():
    times = Times(3, 5)
    starts = earliest_starts(Schedule("interleaved", 4, 8, 2), times)
    for stage in range(4):
        mine = sorted((s, s + times[p.is_backward]) for p, s in starts.items() if p.stage == stage)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(mine))


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="a multiple of the 4 stages, found 6"):
        order_of_work(Schedule("interleaved", 4, 6, 2), 0)
    with pytest.raises(SpecError, match="at most 200,000 pieces, found 2,000,000"):
        earliest_starts(Schedule("gpipe", 1000, 1000), Times(1, 2))
