import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeprof.columns.table import Table, texts_of
from moeprof.ingest.placing.self_time import halves_within_ns
from moeprof.ingest.planes.record import Labels, work_frame

NAMES = ("a2a-start.1", "a2a-done.9", "copy-start.2", "copy-done.2", "dot")
OPS = Table({"op": texts_of(NAMES[:2]), "async_pair": texts_of((NAMES[1], NAMES[0]))})
"""The program has the exchange only: its halves have numbers of their own."""

Piece = tuple[str, int, int, int, bool]
"""(op, start, end, execution, in flight)."""


def halves_within(pieces: list[Piece]) -> list[int]:
    labels = Labels()
    names, starts, ends, executions, flies = zip(*pieces, strict=True)
    work = work_frame(
        len(pieces),
        op=np.array([labels.code(name) for name in names]),
        start_ns=np.array(starts),
        end_ns=np.array(ends),
    )
    rows = [NAMES.index(name) if name in NAMES[:2] else -1 for name in names]
    work = Table.of(work).assign(instruction=np.array(rows))
    found = halves_within_ns(work, np.array(flies), np.array(executions), OPS, labels)
    return found.tolist()


def test_halves_are_told_by_the_program_whatever_their_numbers():
    pieces = [
        ("a2a-start.1", 0, 100, 0, True),
        ("a2a-start.1", 0, 10, 0, False),
        ("a2a-done.9", 70, 100, 0, False),
        ("copy-done.2", 20, 60, 0, False),
    ]
    assert halves_within(pieces) == [40]


def test_halves_are_told_by_their_names_where_the_program_is_missing():
    pieces = [
        ("copy-start.2", 0, 100, 0, True),
        ("copy-start.2", 0, 10, 0, False),
        ("copy-done.2", 95, 120, 0, False),  # 5 of it while the copy is in flight
        ("copy-done.7", 20, 60, 0, False),
    ]
    assert halves_within(pieces) == [15]


def test_each_turn_of_a_loop_has_halves_of_its_own():
    pieces = [
        *(("a2a-start.1", at, at + 50, 0, True) for at in (0, 100)),
        *(("a2a-start.1", at, at + 5, 0, False) for at in (0, 100)),
        *(("a2a-done.9", at + 40, at + 50, 0, False) for at in (0, 100)),
    ]
    assert halves_within(pieces) == [15, 15]


def test_halves_of_other_executions_do_not_count():
    assert halves_within([("a2a-start.1", 0, 100, 0, True), ("a2a-done.9", 0, 50, 1, False)]) == [0]


def test_nothing_in_flight_has_no_halves():
    assert halves_within([("dot", 0, 100, 0, False)]) == []


PIECES = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, 1),
        st.booleans(),
    ).map(lambda p: (p[0], min(p[1:3]), max(p[1:3]), *p[3:])),
    min_size=1,
    max_size=12,
)


@given(PIECES)
def test_halves_cover_the_points_of_time_that_a_half_of_the_op_covers(pieces):
    pair = {name: name.partition("-")[0] for name in NAMES}
    expected = [
        sum(
            any(
                not flies and pair[other] == pair[name] and run == execution and begin <= at < stop
                for other, begin, stop, run, flies in pieces
            )
            for at in range(start, end)
        )
        for name, start, end, execution, is_in_flight in pieces
        if is_in_flight
    ]
    assert halves_within(pieces) == expected
