import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.errors import SpecError
from moeprof.specs.in_flight import in_flight
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import order_of_work


def held(schedule, stage):
    """Most microbatches of the stage that the order of work holds, counted piece by piece."""
    now = most = 0
    for piece in order_of_work(schedule, stage):
        now += -1 if piece.is_backward else 1
        most = max(most, now)
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
    ],
)
def test_microbatches_held_at_the_peak(asked, microbatches):
    assert in_flight(*asked) == pytest.approx(microbatches)


@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved", "circular"]),
    stages=st.integers(1, 9),
    virtual=st.integers(1, 4),
    microbatches=st.integers(1, 24),
)
def test_the_order_of_work_holds_as_many(name, stages, virtual, microbatches):
    chunks = virtual if name in ("interleaved", "circular") else 1
    many = microbatches * stages if name == "interleaved" else microbatches
    schedule = Schedule(name, stages, many, chunks)
    for stage in range(stages):
        assert in_flight(name, stages, chunks, many, stage) == held(schedule, stage)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="expected a stage from 0 to 3, found 4"):
        in_flight("1f1b", 4, 1, 8, 4)
    with pytest.raises(SpecError, match="a multiple of the 4 stages, found 6"):
        in_flight("interleaved", 4, 2, 6, 0)
