from itertools import pairwise

from builders.hlo import computation, hlo_proto, op
from hypothesis import given
from hypothesis import strategies as st

from moeprof.ingest.programs import parse_program
from moeprof.ingest.self_time import bodies, covered, self_times_ps, union
from moeprof.ingest.work import Work

MODULE = parse_program(
    hlo_proto(
        computation("inner", op("add", "add", "f32[]"), op("mul", "multiply", "f32[]")),
        computation(
            "body", op("dot", "dot", "f32[]"), op("while.2", "while", "f32[]", called=("inner",))
        ),
        computation(
            "main", op("while.1", "while", "f32[]", called=("body",)), op("neg", "negate", "f32[]")
        ),
    )
).module
BODIES = bodies({7: MODULE})


def work(op_name: str, start: int, end: int, *, run_id: int = 1, device: int = 0) -> Work:
    return Work(device, "t", op_name, 7, op_name, run_id, start, end)


def test_bodies_reach_into_nested_loops():
    assert {
        (7, "while.2"): {"add", "mul"},
        (7, "while.1"): {"dot", "while.2", "add", "mul"},
    } == BODIES


def test_a_loop_gives_up_the_time_of_its_body_once():
    items = [
        work("while.1", 0, 100),  # body covers [10,30) and [40,90): self 100 - 20 - 50
        work("dot", 10, 30),
        work("while.2", 40, 90),  # body covers [45,60) and [60,80): self 50 - 35
        work("add", 45, 60),
        work("mul", 60, 80),
        work("neg", 100, 130),
    ]
    assert self_times_ps(items, BODIES) == [30, 20, 15, 15, 20, 30]


def test_body_ops_that_run_at_once_are_taken_off_once():
    items = [work("while.1", 0, 100), work("dot", 10, 60), work("add", 40, 80)]
    assert self_times_ps(items, BODIES)[0] == 30  # union [10,80)


def test_a_body_that_outlives_its_loop_is_cut_to_it():
    assert self_times_ps([work("while.1", 0, 50), work("dot", 40, 90)], BODIES) == [40, 50]


def test_other_runs_and_devices_take_nothing_off():
    items = [work("while.1", 0, 100), work("dot", 0, 50, run_id=2), work("dot", 0, 50, device=1)]
    assert self_times_ps(items, BODIES) == [100, 50, 50]


def test_an_op_beside_the_loop_takes_nothing_off():
    assert self_times_ps([work("while.1", 0, 100), work("neg", 20, 40)], BODIES) == [100, 20]


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=12
)


@given(INTERVALS, st.integers(0, 60), st.integers(0, 60))
def test_union_and_cover_agree_with_counting_points(intervals, start, end):
    points = {p for a, b in intervals for p in range(a, b)}
    merged = union(intervals)
    assert {p for a, b in merged for p in range(a, b)} == points
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    assert covered(merged, start, end) == len(points & set(range(start, end)))
