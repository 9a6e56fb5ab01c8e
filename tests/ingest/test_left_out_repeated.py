"""Device work that a profile holds twice counts once, and the record says so."""

import numpy as np
from builders.xspace import Plane, Ref, event, host, line, xspace

from moeprof.ingest import open_run
from moeprof.ingest.planes.left_out import without_repeats
from moeprof.ingest.planes.record import work_frame
from moeprof.tables.law import Need

NONE = np.zeros(0, np.int64)
KERNELS = [
    event("fusion_1", 1000 + 500 * i, 300, correlation_id=i, hlo_op=Ref("fusion.1"), program_id=7)
    for i in range(6)
]


def opened(folder, *lines):
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(Plane("/device:GPU:0", lines), host(line("python"))))
    return open_run(file)


def law(trace):
    return next(law for law in trace.trust if law.check == "recorded_once")


def test_a_stream_that_is_there_once_is_left_as_it_is(tmp_path):
    trace = opened(tmp_path, line("Stream #7(Compute)", *KERNELS))
    assert len(trace.events) == 6
    assert (law(trace).verdict, law(trace).found) == ("ok", 6)


def test_a_copy_of_a_stream_counts_once(tmp_path):
    copy = line("Stream #99(Copy)", *KERNELS)
    trace = opened(tmp_path, line("Stream #7(Compute)", *KERNELS), copy)
    assert trace.events["self_ns"].sum() == 6 * 300
    assert (law(trace).verdict, law(trace).expected, law(trace).found) == ("warn", 6, 12)
    assert "6 of 12 pieces" in law(trace).detail
    left_out = trace.dropped.set_index("what")["count"]
    assert left_out["pieces of device work recorded again"] == 6


def test_events_of_a_line_that_are_flushed_again_count_once(tmp_path):
    trace = opened(tmp_path, line("Stream #7(Compute)", *KERNELS, *KERNELS[2:5]))
    assert len(trace.events) == 6
    assert law(trace).found == 9


def test_a_copy_of_a_stream_with_other_stamps_counts_once(tmp_path):
    late = [event(e.name, e.start_ns + 70, e.duration_ns - 30, **e.stats) for e in KERNELS]
    calls = [
        event("cuLaunchKernel", 500 + 500 * i, 50, correlation_id=i, device_id=0) for i in range(6)
    ]
    file = tmp_path / "node0.xplane.pb"
    streams = (line("Stream #7(Compute)", *KERNELS), line("Stream #8(Copy)", *late))
    file.write_bytes(xspace(Plane("/device:GPU:0", streams), host(line("python", *calls))))
    trace = open_run(file)
    assert trace.events["duration_ns"].tolist() == [300] * 6
    assert (law(trace).verdict, law(trace).found) == ("warn", 12)


def test_kernels_of_one_replay_of_a_graph_share_a_launch(tmp_path):
    nodes = [
        event("fusion_1", 1000 + 500 * i, 300, correlation_id=9, cuda_graph_node_id=i + 1)
        for i in range(4)
    ]
    assert len(opened(tmp_path, line("Stream #7(Compute)", *nodes)).events) == 4


def test_kernels_without_length_take_the_times_of_work_away(tmp_path):
    instant = event("fusion_1", 9000, 0, correlation_id=77, hlo_op=Ref("fusion.1"), program_id=7)
    trace = opened(tmp_path, line("Stream #7(Compute)", *KERNELS, instant))
    found = next(law for law in trace.trust if law.check == "durations")
    assert (found.verdict, found.expected, found.found) == ("fail", 7, 6)
    assert found.breaks == (Need.PIECE_TIMES,)


def work_of(*rows):
    """Rows of device, name, line, start, end, correlation id."""
    names = ("device", "name", "line", "start_ns", "end_ns", "correlation_id")
    return work_frame(len(rows), **dict(zip(names, np.array(rows).T, strict=True)))


def test_equal_pieces_without_a_launch_on_two_streams_are_two():
    work = work_of((0, 1, 1, 10, 20, -1), (0, 1, 2, 10, 20, -1), (0, 1, 2, 30, 40, -1))
    assert without_repeats(work, NONE)[1] == 0


def test_a_launch_brings_one_kernel_of_a_name_and_op():
    twice = work_of((0, 1, 1, 10, 20, 5), (0, 1, 2, 15, 22, 5), (0, 2, 1, 30, 40, 5))
    assert without_repeats(twice, np.array([5, 6]))[1] == 1
    assert without_repeats(twice, NONE)[1] == 0  # it may be the replay of a graph


def test_equal_pieces_of_two_launches_or_devices_are_two():
    work = work_of((0, 1, 1, 10, 20, 5), (0, 1, 1, 10, 20, 6), (1, 1, 1, 10, 20, 5))
    assert without_repeats(work, NONE)[1] == 0


def test_pieces_without_length_stay():
    assert without_repeats(work_of((0, 1, 1, 10, 10, 5), (0, 1, 1, 10, 10, 5)), NONE)[1] == 0
