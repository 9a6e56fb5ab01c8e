import pytest
from builders.schedules import order_of_work, schedules
from hypothesis import given

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import in_flight, in_flight_by_chunk


def held(schedule, stage):
    """Most microbatches of the stage that the order of work holds, counted piece by piece."""
    last = "weight_gradient" if schedule.splits_backward else "backward"
    step = {"forward": 1, last: -1}
    now = most = 0
    for piece in order_of_work(schedule, stage):
        now += step.get(piece.kind, 0)
        most = max(most, now)
    assert now == 0
    return most / schedule.chunks


@pytest.mark.parametrize(
    ("asked", "microbatches"),
    [
        (("gpipe", 4, 1, 8, 3), 8),
        (("circular", 4, 2, 8, 0), 8),
        (("1f1b", 4, 1, 8, 0), 4),
        (("1f1b", 4, 1, 8, 3), 1),
        (("1f1b", 8, 1, 2, 0), 2),
        (("interleaved", 4, 2, 8, 0), 11 / 2),  # 2 · 3 + 4 + 1 chunks
        (("interleaved", 4, 2, 4, 0), 4),  # there are no more
        (("interleaved", 16, 6, 16, 15), 81 / 6),  # 5 · 16 + 1
        (("zb-h1", 4, 1, 8, 3), 4),
        (("zb-h1", 4, 1, 3, 3), 3),
        (("zb-h2", 4, 1, 8, 3), 7),
        (("zbv", 4, 2, 8, 0), 4),
        (("zbv", 4, 2, 4, 0), 5 / 2),  # 4 in the first chunk when the second begins
        (("v-half", 8, 2, 16, 0), 5),
        (("v-half", 7, 2, 16, 6), 4),
        # F at 0 and 15, W ends at 33 and 18, again every 6: 6 chunks from 27 on
        (("v-min", 8, 2, 16, 0), 3),
        (("v-min", 16, 2, 64, 3), 6),
        (("v-min", 16, 2, 2, 3), 2),
    ],
)
def test_microbatches_held_at_the_peak(asked, microbatches):
    assert in_flight(*asked) == pytest.approx(microbatches)


@given(schedules())
def test_the_order_of_work_holds_as_many(schedule):
    name, p, m, v = schedule.name, schedule.stages, schedule.microbatches, schedule.chunks
    for stage in range(p):
        assert in_flight(name, p, v, m, stage) == held(schedule, stage)


@pytest.mark.parametrize("stages", range(1, 41))
def test_the_v_schedules_hold_what_was_published_with_them(stages):
    """Qi et al. 2024: (p + 2) // 2 and (p + 4) // 3 microbatches on the worst stage."""
    worst = {
        name: max(in_flight(name, stages, 2, 4 * stages, stage) for stage in range(stages))
        for name in ("zbv", "v-half", "v-min")
    }
    assert worst == {"zbv": stages, "v-half": (stages + 2) // 2, "v-min": (stages + 4) // 3}


@given(schedules())
def test_the_chunks_of_a_stage_add_up(schedule):
    shape = schedule.name, schedule.stages, schedule.chunks, schedule.microbatches
    for stage in range(schedule.stages):
        by_chunk = in_flight_by_chunk(schedule, stage)
        assert sum(by_chunk) / schedule.chunks == in_flight(*shape, stage)


def test_the_first_chunk_is_held_by_more_microbatches():
    """Interleaved, 2 stages, 2 chunks, stage 0: 2 · 1 + 2 + 1 = 5 forwards: 2 of each chunk, then
    one more of the first.

    Stage 0 of v-min on 8: chunk 0 from 6j to 6j + 33, chunk 1 from 6j + 15 to 6j + 18. At 27 they
    are held by 5 and 1 microbatches, at 30 by 6 and none.
    """
    assert in_flight_by_chunk(Schedule("interleaved", 2, 4, 2), 0) == (3, 2)
    schedule = Schedule("v-min", 8, 16, 2)
    assert in_flight_by_chunk(schedule, 0, sizes=(1, 9)) == (5, 1)
    assert in_flight_by_chunk(schedule, 0, sizes=(9, 1)) == (6, 0)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="expected a stage from 0 to 3, found 4"):
        in_flight("1f1b", 4, 1, 8, 4)
    with pytest.raises(SpecError, match="a multiple of the 4 stages, found 6"):
        in_flight("interleaved", 4, 2, 6, 0)
    with pytest.raises(SpecError, match=r"zbv: each stage has two chunks .virtual 2., found 1"):
        in_flight("zbv", 4, 1, 8, 0)


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
