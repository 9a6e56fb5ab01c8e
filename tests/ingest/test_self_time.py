import numpy as np
from builders.hlo import computation, hlo_proto, op
from hypothesis import given
from hypothesis import strategies as st

from moeprof.ingest.hlo.programs import parse_program
from moeprof.ingest.placing.self_time import bodies, nested_self_times_ns, self_times_ns
from moeprof.ingest.program_frames import hlo_frame

OPS = hlo_frame(
    {
        7: parse_program(
            hlo_proto(
                computation("inner", op("add", "add", "f32[]"), op("mul", "multiply", "f32[]")),
                computation(
                    "body",
                    op("dot", "dot", "f32[]"),
                    op("while.2", "while", "f32[]", called=("inner",)),
                ),
                computation(
                    "main",
                    op("while.1", "while", "f32[]", called=("body",)),
                    op("neg", "negate", "f32[]"),
                ),
            )
        )
    }
).pandas()  # bridge
ROW = {name: row for row, name in enumerate(OPS["op"])}
BODIES = bodies(OPS)

Item = tuple[str, int, int, int]
"""(op, start, end, execution)."""


def work(op_name: str, start: int, end: int, *, execution: int = 0) -> Item:
    return op_name, start, end, execution


def self_times(items: list[Item]) -> list[int]:
    names, starts, ends, executions = zip(*items, strict=True)
    rows = np.array([ROW.get(name, -1) for name in names])
    return self_times_ns(
        np.array(starts), np.array(ends), rows, np.array(executions), BODIES
    ).tolist()


def test_bodies_reach_into_nested_loops():
    names = OPS["op"]
    assert {names[caller]: set(names[rows]) for caller, rows in BODIES.items()} == {
        "while.2": {"add", "mul"},
        "while.1": {"dot", "while.2", "add", "mul"},
    }


def test_a_loop_gives_up_the_time_of_its_body_once():
    items = [
        work("while.1", 0, 100),  # body covers [10,30) and [40,90): self 100 - 20 - 50
        work("dot", 10, 30),
        work("while.2", 40, 90),  # body covers [45,60) and [60,80): self 50 - 35
        work("add", 45, 60),
        work("mul", 60, 80),
        work("neg", 100, 130),
    ]
    assert self_times(items) == [30, 20, 15, 15, 20, 30]


def test_body_ops_that_run_at_once_are_taken_off_once():
    items = [work("while.1", 0, 100), work("dot", 10, 60), work("add", 40, 80)]
    assert self_times(items)[0] == 30  # union [10,80)


def test_a_body_that_outlives_its_loop_is_cut_to_it():
    assert self_times([work("while.1", 0, 50), work("dot", 40, 90)]) == [40, 50]


def test_other_runs_and_devices_take_nothing_off():
    items = [
        work("while.1", 0, 100),
        work("dot", 0, 50, execution=1),
        work("dot", 0, 50, execution=2),
    ]
    assert self_times(items) == [100, 50, 50]


def test_an_op_beside_the_loop_takes_nothing_off():
    assert self_times([work("while.1", 0, 100), work("neg", 20, 40)]) == [100, 20]


ITEMS = st.lists(
    st.tuples(
        st.sampled_from([*ROW, "unknown"]),
        st.integers(0, 40),
        st.integers(0, 40),
        st.integers(0, 2),
    ).map(lambda item: (item[0], min(item[1:3]), max(item[1:3]), item[3])),
    min_size=1,
    max_size=12,
)


@given(ITEMS)
def test_self_time_is_the_points_of_time_that_no_op_of_the_body_covers(items):
    inside = {"while.1": {"dot", "while.2", "add", "mul"}, "while.2": {"add", "mul"}}
    expected = [
        sum(
            not any(
                other in inside.get(name, ()) and begin <= point < stop and run == execution
                for other, begin, stop, run in items
            )
            for point in range(start, end)
        )
        for name, start, end, execution in items
    ]
    assert self_times(items) == expected


def nested_times(items: list[tuple[int, int, int]]) -> list[int]:
    starts, ends, lines = (np.array(column, np.int64) for column in zip(*items, strict=True))
    return nested_self_times_ns(starts, ends, lines).tolist()


def test_nesting_takes_each_piece_off_the_one_directly_around_it():
    items = [(0, 100, 0), (10, 90, 0), (20, 30, 0), (40, 60, 0), (95, 100, 0), (100, 130, 0)]
    # 100 - 80 - 5; 80 - 10 - 20
    assert nested_times(items) == [15, 50, 10, 20, 5, 30]


def test_nesting_does_not_reach_from_line_to_line():
    assert nested_times([(0, 100, 0), (10, 20, 1), (30, 40, 0)]) == [90, 10, 10]


def test_a_piece_that_sticks_out_is_taken_off_as_far_as_it_lies_inside():
    assert nested_times([(0, 50, 0), (40, 90, 0)]) == [40, 50]


def test_nothing_nested_in_nothing_is_nothing():
    empty = np.zeros(0, np.int64)
    assert nested_self_times_ns(empty, empty, empty).tolist() == []


PIECES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 1)).map(
        lambda piece: (min(piece[:2]), max(piece[:2]), piece[2])
    ),
    min_size=1,
    max_size=14,
)


def crosses(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[2] == other[2] and one[0] < other[0] < one[1] < other[1]


@given(PIECES)
def test_every_point_of_time_on_a_line_is_of_the_innermost_piece(pieces):
    kept: list[tuple[int, int, int]] = []
    for piece in pieces:
        if not any(crosses(piece, other) or crosses(other, piece) for other in kept):
            kept.append(piece)
    kept.sort(key=lambda piece: (piece[2], piece[0], -piece[1]))
    expected = [0] * len(kept)
    for line in (0, 1):
        for point in range(20):
            around = [i for i, (a, b, on) in enumerate(kept) if on == line and a <= point < b]
            if around:
                expected[around[-1]] += 1
    assert nested_times(kept) == expected


@given(PIECES)
def test_self_time_of_crossing_pieces_is_never_less_than_nothing(pieces):
    lengths = [end - start for start, end, _ in pieces]
    assert all(0 <= t <= length for t, length in zip(nested_times(pieces), lengths, strict=True))
