import numpy as np
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Line, Plane, event, line, metadata, xspace
from hypothesis import given
from hypothesis import strategies as st

from moeprof.columns.table import Table
from moeprof.ingest import open_run
from moeprof.ingest.placing.too_long import repaired
from moeprof.ingest.planes.record import Labels, work_frame

US = 1000
PROGRAM = hlo_proto(computation("main", op("fusion", "fusion", "f32[8]")))


def lengths(*pieces, kind="kernel"):
    """Lengths after repair of pieces (start, end[, correlation id]) on one stream."""
    labels = Labels()
    starts, ends = (np.array([piece[i] for piece in pieces], np.int64) for i in (0, 1))
    launches = np.array([p[2] if len(p) > 2 else -1 for p in pieces], np.int64)
    frame = work_frame(
        len(pieces),
        device=0,
        line=labels.code("Stream #1"),
        kind=labels.code(kind),
        start_ns=starts,
        end_ns=ends,
        correlation_id=launches,
    )
    work = repaired(Table.of(frame), labels).work
    return (work["end_ns"] - work["start_ns"]).tolist()


def test_a_kernel_that_outlives_the_next_one_is_cut_where_that_begins():
    assert lengths((0, 500), (100, 180), (200, 280)) == [100, 80, 80]


def test_a_kernel_that_drains_while_the_next_one_begins_is_left_alone():
    assert lengths((0, 105), (100, 180)) == [105, 80]


def test_pieces_of_one_launch_may_run_at_once():
    assert lengths((0, 100, 7), (10, 20, 7), (100, 110, 8)) == [100, 10, 10]


def test_a_piece_of_a_launch_is_cut_by_the_next_launch():
    assert lengths((0, 500, 7), (10, 20, 7), (100, 110, 8)) == [100, 10, 10]


def test_pieces_of_no_length_and_of_equal_start_cut_nothing():
    assert lengths((0, 10), (10, 10), (10, 20)) == [10, 0, 10]
    assert lengths((0, 20), (5, 5), (20, 30)) == [20, 0, 10]
    assert lengths((0, 20), (0, 10)) == [20, 10]


def test_waits_and_ops_of_cpu_threads_are_not_serial():
    assert lengths((0, 500), (100, 180), kind="sync") == [500, 80]
    assert lengths((0, 500), (100, 180), kind="op") == [500, 80]


def test_a_line_on_which_pieces_enclose_each_other_all_the_time_is_left_alone():
    pieces = [(100 * i + at, 100 * i + end) for i in range(8) for at, end in ((0, 80), (10, 20))]
    assert lengths(*pieces) == [80, 10] * 8


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 3)), max_size=14))
def test_repair_agrees_with_a_loop(raw):
    pieces = sorted(((s, s + d, launch) for s, d, launch in raw), key=lambda p: (p[0], -p[1]))
    timed = [p for p in pieces if p[1] > p[0]]
    wrong = {}
    for i, (start, end, launch) in enumerate(timed):
        bound = next((p[0] for p in timed[i + 1 :] if p[2] != launch), None)
        if bound is None or bound <= start:
            continue
        if any(p[0] >= bound and p[1] < end for p in timed):
            wrong[i] = bound - start
    if len(wrong) > 3 and len(wrong) > 0.05 * len(timed):
        wrong = {}
    places = iter(range(len(timed)))
    want = []
    for p in pieces:
        place = next(places) if p[1] > p[0] else None
        want.append(p[1] - p[0] if place is None else wrong.get(place, p[1] - p[0]))
    assert lengths(*pieces) == want if pieces else True


@pytest.fixture
def one_impossible(tmp_path):
    """Kernel i at [100 i, 100 i + 80) us, i < 1000; kernel 500 is said to last 3.4 s."""
    kernels = [
        event(
            f"fusion_{i}",
            (100 * i + 1) * US,
            (3_400_000 if i == 500 else 80) * US,
            correlation_id=i,
        )
        for i in range(1000)
    ]
    gpu = Plane("/device:GPU:0", (Line("Stream #1(Compute)", tuple(kernels)),))
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), gpu, line_plane()))
    return open_run(file)


def line_plane() -> Plane:
    return Plane("/host:CPU", (line("python"),))


def test_an_impossible_duration_is_cut_kept_as_recorded_and_counted(one_impossible):
    events = one_impossible.events
    assert (events["duration_ns"] != events["recorded_ns"]).sum() == 1
    assert events["duration_ns"].sum() == 80_020 * US
    assert events["recorded_ns"].sum() == (999 * 80 + 3_400_000) * US
    (check,) = (c for c in one_impossible.trust if c.check == "durations")
    assert check.verdict == "warn"
    assert check.detail.startswith("1 of 1,000 pieces of stream work is longer than")
    assert "80.02 ms after repair, 3.480 s before repair" in check.detail
