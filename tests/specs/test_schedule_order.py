import pytest

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import order_of_work

LETTERS = {"forward": "F", "backward": "B", "weight_gradient": "W"}


def names(schedule, stage):
    """``F0`` and ``B0`` by microbatch, with the chunk behind where there are several."""
    more = schedule.chunks > 1
    return " ".join(
        f"{LETTERS[p.kind]}{p.microbatch}" + (f".{p.chunk}" if more else "")
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


def test_h1_holds_as_many_pieces_of_w_back_as_its_stage():
    assert names(Schedule("zb-h1", 3, 4), 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert names(Schedule("zb-h1", 3, 4), 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_h2_runs_twice_as_many_forwards_ahead():
    assert names(Schedule("zb-h2", 2, 3), 0) == "F0 F1 F2 B0 W0 B1 W1 B2 W2"
    assert names(Schedule("zb-h2", 2, 3), 1) == "F0 B0 F1 B1 F2 B2 W0 W1 W2"


def test_zbv_alternates_between_its_chunks():
    """Stage 0 of 2: 3 pieces F0 ahead, then twice F1 B1 W1 before the first B0."""
    order = names(Schedule("zbv", 2, 4, 2), 0)
    assert order.startswith("F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 F3.0 B0.0 W0.0 F2.1")
    last = names(Schedule("zbv", 2, 4, 2), 1)
    assert last.startswith("F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1")


def test_an_interleaved_schedule_needs_whole_groups():
    with pytest.raises(SpecError, match="a multiple of the 4 stages, found 6"):
        order_of_work(Schedule("interleaved", 4, 6, 2), 0)
