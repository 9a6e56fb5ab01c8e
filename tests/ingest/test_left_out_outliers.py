import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import event, host, line, metadata, thunk, xspace

from moeprof.ingest import open_run

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))
THEN_NS = 1_700_000_000_000_000  # 19.7 days on the clock of the host
YEAR_NS = 365 * 86_400 * 10**9


def opened(folder, *work):
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("pool", *work))))
    return open_run(file)


def normal(count=5000):
    return [thunk("add", THEN_NS + 1000 * i, 800, run_id=i // 1000) for i in range(count)]


def span_ns(trace):
    events = trace.events
    return int((events["start_ns"] + events["duration_ns"]).max() - events["start_ns"].min())


def stamps(trace):
    return next(c for c in trace.trust if c.check == "time_stamps")


def test_zero_and_negative_stamps_do_not_stretch_the_time_axis(tmp_path):
    odd = thunk("add", THEN_NS, -5), thunk("add", 0, 10), thunk("add", -1_000_000, 10)
    trace = opened(tmp_path, *normal(), *odd)
    assert span_ns(trace) == 4999 * 1000 + 800
    assert len(trace.events) == 5000
    assert trace.dropped.set_index("what")["count"]["impossible time stamp"] == 3
    assert stamps(trace).verdict == "warn"
    assert stamps(trace).detail.startswith("3 event(s) with a start or length that cannot be")
    assert "'add' at -1,000,000 ns for 10 ns" in stamps(trace).detail


def test_an_event_years_away_is_left_out_and_listed(tmp_path):
    far = thunk("add", THEN_NS + 3 * YEAR_NS, 10, run_id=9)
    trace = opened(tmp_path, *normal(100), far)
    assert span_ns(trace) == 99 * 1000 + 800
    assert trace.dropped.set_index("what")["count"]["far from the work"] == 1
    assert stamps(trace).detail.startswith("1 event(s) far from where the work is: left out: 'add'")


def test_an_annotation_years_away_is_no_step(tmp_path):
    far = event("train", THEN_NS - YEAR_NS // 20, 5, step_num=3)
    trace = opened(tmp_path, *normal(2000), far, thunk("add", 50, 10))
    assert trace.markers.empty
    assert 3 not in set(trace.steps["step"])


@pytest.mark.parametrize("pause_s", [60, 3000])
def test_a_long_pause_in_a_capture_makes_no_outlier(tmp_path, pause_s):
    early = thunk("add", THEN_NS - pause_s * 10**9, 10, run_id=9)
    assert len(opened(tmp_path, early, *normal(100)).events) == 101


def test_a_piece_that_ends_months_later_is_left_out_like_one_that_begins_then(tmp_path):
    endless = thunk("add", THEN_NS + 100 * 1000, 9 * 10**15, run_id=9)
    trace = opened(tmp_path, *normal(100), endless)
    assert span_ns(trace) == 99 * 1000 + 800
    assert trace.dropped.set_index("what")["count"]["far from the work"] == 1


def test_a_last_step_that_never_ends_is_not_measured(tmp_path):
    """3 s where all others take 0.8 us: within the hour, and nothing behind it bounds it."""
    work = [thunk("add", THEN_NS + 1000 * i, 800, run_id=i) for i in range(6)]
    trace = opened(tmp_path, *work[:-1], thunk("add", THEN_NS + 5000, 3 * 10**9, run_id=5))
    assert trace.steps["used"].tolist() == [True] * 5 + [False]
    assert trace.steps["reason"].tolist()[-1].startswith("end not seen: 3750000.0 × the median")
