import pytest

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule
from moeprof.specs.stage_work import StageWork, times_of


def test_chunks_share_the_work_of_a_stage_and_kinds_share_a_chunk():
    """12 ns in 2 chunks of 6: forward 1, gradients of input 2 and of weights 3."""
    times = times_of(Schedule("zbv", 2, 4, 2), StageWork((12, 24), (1, 2, 3)))
    assert times.work_ns[:, 0].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert times.work_ns[:, 1].tolist() == [[2, 2], [4, 4], [6, 6]]


def test_embedding_and_head_are_where_the_model_begins_and_ends():
    work = StageWork((6,), embedding_ns=3, head_ns=9)
    forward = times_of(Schedule("interleaved", 3, 3, 2), work).work_ns[0]
    assert forward.tolist() == [[2, 1], [1, 1], [1, 4]]
    forward = times_of(Schedule("v-min", 3, 3, 2), work).work_ns[0]  # back up to the first stage
    assert forward.tolist() == [[2, 4], [1, 1], [1, 1]]


def test_parts_are_whole_and_add_up():
    assert times_of(Schedule("1f1b", 1, 1), StageWork((10,))).work_ns.ravel().tolist() == [3, 4, 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"total_ns": ()}, "expected positive times"),
        ({"total_ns": (5, 0)}, r"found \(5, 0\) ns"),
        ({"total_ns": (5,), "head_ns": -1}, "expected positive times"),
        ({"total_ns": (5,), "shares": (0, 0, 0)}, "expected shares of 0 or more"),
        ({"total_ns": (5,), "shares": (2, -1, 1)}, "expected shares of 0 or more"),
    ],
)
def test_what_is_no_time_is_refused(given, said):
    with pytest.raises(SpecError, match=said):
        StageWork(**given)


def test_every_stage_needs_its_time():
    with pytest.raises(SpecError, match="expected 4 times, one per stage, or one for all; found 3"):
        times_of(Schedule("1f1b", 4, 8), StageWork((1, 1, 1)))
