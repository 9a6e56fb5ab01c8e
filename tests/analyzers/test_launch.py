import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.questions.launch import launch, pairs_of

OPS = (hlo("dot", "dot"),)
US = 1000


def work(start_us, duration_us, correlation_id=-1, **more):
    known = {"correlation_id": correlation_id, **more}
    return kernel("dot", start_us * US, duration_us * US, **known)


def call(correlation_id, start_us, duration_us=1):
    known = {"host": "a", "line": "main", "name": "cuLaunchKernel", "device": 0}
    times = {"start_ns": start_us * US, "duration_ns": duration_us * US}
    return {**known, "correlation_id": correlation_id, **times}


def figures(trace):
    return {metric.metric: metric.value for metric in launch(trace).headline}


def test_kernels_are_counted_by_the_class_of_their_duration():
    events = [work(0, 1), work(5, 1, name="b"), work(10, 1, name="b"), work(20, 2), work(30, 10)]
    events.append(work(50, 3, kind="copy"))
    trace = traced(events, OPS)
    found = launch(trace).table
    assert found["duration"].tolist() == ["< 2 us", "2 to 5 us", "10 to 50 us"]
    assert found["kernels"].tolist() == [3, 1, 1]
    assert found["share"].tolist() == [0.6, 0.2, 0.2]
    assert found["per_step_ns"].tolist() == [3 * US, 2 * US, 10 * US]
    assert found["most_frequent"].tolist() == ["b", "dot", "dot"]
    assert found["most_frequent_kernels"].tolist() == [2, 1, 1]
    told = figures(trace)
    assert told["kernels_per_step"] == 5
    assert told["short_kernel_share"] == 0.8
    assert told["short_kernel_time_share"] == pytest.approx(5 / 15)


def test_latency_is_from_the_call_to_the_first_piece_that_it_brought():
    events = [work(10, 10, 1), work(20, 10, 1), work(30, 10, 2), work(60, 10, 3)]
    calls = [call(1, 0), call(2, 4, 2), call(3, 50), call(9, 51)]
    told = figures(traced(events, OPS, launches=calls))
    # 10, 26 and 10 us; the call without work on a device does not count
    assert told["launch_latency_median"] == 10 * US
    assert told["launch_latency_p90"] == pytest.approx((10 + 0.8 * 16) * US)
    assert told["launch_calls_per_step"] == 3
    assert told["launch_call_time"] == 4 * US


def test_a_launch_is_paired_with_the_first_piece_that_it_brought():
    """Of a graph the first; not what nothing launched, nor a launch without work here."""
    events = [work(10, 1, 2), work(20, 1, 1), work(30, 1, 1), work(40, 1)]
    pairs = pairs_of(traced(events, OPS, launches=[call(1, 0), call(2, 4), call(9, 51)]))
    assert list(pairs.rows("launch", "event")) == [(1, 0), (0, 1)]


def test_the_queue_holds_what_is_launched_and_has_not_started():
    # depth at the calls: 0 at 0 us, 1 at 4 us, 2 at 5 us, 0 at 50 us
    events = [work(10, 10, 1), work(20, 10, 2), work(30, 10, 3), work(60, 40, 4)]
    calls = [call(1, 0), call(2, 4), call(3, 5), call(4, 50)]
    told = figures(traced(events, OPS, steps={0: (0, 100 * US)}, launches=calls))
    assert told["queue_depth_median"] == 0.5
    # waiting from 0 to 30 and from 50 to 60 us
    assert told["empty_queue_share"] == pytest.approx(0.6)


def test_devices_have_queues_of_their_own():
    events = [work(10, 10, 1), work(10, 10, 2, device=1)]
    trace = traced(events, OPS, steps={0: (0, 20 * US)}, launches=[call(1, 0), call(2, 5)])
    assert figures(trace)["queue_depth_median"] == 0
    assert figures(trace)["empty_queue_share"] == pytest.approx((10 + 15) / 40)


def test_work_before_its_launch_shows_what_the_clocks_fail_by():
    trace = traced([work(10, 10, 1), work(30, 10, 2)], OPS, launches=[call(1, 13), call(2, 20)])
    (note,) = [note for note in launch(trace).notes if note.startswith("clocks")]
    assert "1 of 2 launches (50.0 %)" in note
    assert "by up to 3.000 µs" in note


def test_nodes_of_graphs_are_told():
    events = [work(0, 1, 1, graph_node=4), work(5, 1, 1, graph_node=5), work(9, 1), work(12, 1)]
    assert figures(traced(events, OPS))["command_buffer_share"] == 0.5
    assert launch(traced(events, OPS)).table["graph_share"].tolist() == [0.5]


def test_without_launch_calls_kernels_are_counted_and_nothing_is_told_of_the_queue():
    trace = traced([work(0, 1, 1), work(5, 1, 2)], OPS)
    told = figures(trace)
    assert told["kernels_per_step"] == 2
    assert {told[name] for name in told if name.startswith(("launch", "queue", "empty"))} == {None}
    assert "latency and queue are not known" in launch(trace).notes[0]


def test_a_trace_without_kernels_is_answered():
    trace = traced([work(0, 1, kind="op")], OPS)
    assert launch(trace).table.empty
    assert set(figures(trace).values()) == {None}
    assert launch(trace).notes == ("none in this trace: no kernels of a GPU, so no launches",)
