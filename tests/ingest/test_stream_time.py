"""Work on one stream takes no longer than the time that it covers.

Each step runs five kernels, one every 100 ns, in 10,000: the stream is busy for 4 % of the time.
"""

from builders import gpu
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.ingest import open_run
from moeprof.tables.law import Need

OPS = ("norm", "gemm", "gate", "up", "down")
STEPS = 3


def law_of(folder, pieces, steps=STEPS, name="stream_time"):
    """The law where each (step, place, shift, length, more stats) is a kernel on one stream."""
    kernels = [
        event(
            f"k_{OPS[place]}",
            gpu.start_ns(0, step, place) + 50 + shift,
            length,
            **{
                "hlo_op": Ref(OPS[place]),
                "program_id": 7,
                "correlation_id": gpu.number(0, step, place),
                **more,
            },
        )
        for step, place, shift, length, more in pieces
    ]
    file = folder / "node0.xplane.pb"
    file.write_bytes(
        xspace(
            metadata(p7=gpu.program(OPS)),
            Plane("/device:GPU:0", (line(gpu.STREAM, *kernels),)),
            host(gpu.main_thread(steps), gpu.thread(0, steps, OPS)),
        )
    )
    return next(law for law in open_run(file).trust if law.check == name)


def each(*kinds, steps=STEPS):
    """Each launch brings a piece of each (shift, length, more stats)."""
    return [(s, p, *kind) for s in range(steps) for p in range(len(OPS)) for kind in kinds]


def unlaunched(step, place):
    """Of a launch that the host did not record: pieces of one that it did count once anyway."""
    return {"correlation_id": 10**6 + 100 * step + place}


def test_every_kernel_recorded_twice_a_little_apart_fails(tmp_path):
    again = [(s, p, 3, 70, unlaunched(s, p)) for s in range(STEPS) for p in range(len(OPS))]
    found = law_of(tmp_path, each((0, 70, {})) + again)
    assert (found.verdict, found.breaks, found.unit) == ("fail", (Need.DEVICE_TIMES,), "ns")
    assert (found.expected, found.found) == (5 * 73, 5 * 140)
    assert "step 0" in found.detail


def test_one_step_of_many_recorded_twice_fails(tmp_path):
    pieces = each((0, 70, {}), steps=20) + [(11, p, 4, 70, unlaunched(11, p)) for p in range(5)]
    found = law_of(tmp_path, pieces, steps=20)
    assert (found.verdict, found.expected, found.found) == ("fail", 5 * 74, 5 * 140)
    assert "step 11" in found.detail


def test_nodes_of_a_graph_recorded_twice_fail(tmp_path):
    # one launch a step; its five nodes run one behind the other
    pieces = [
        (s, p, shift, 60, {"correlation_id": gpu.number(0, s, 0), "cuda_graph_node_id": 30 + p})
        for s in range(STEPS)
        for p in range(5)
        for shift in (0, 6)
    ]
    found = law_of(tmp_path, pieces)
    assert (found.verdict, found.found - found.expected) == ("fail", 5 * (60 - 6))


def test_nodes_of_a_graph_may_run_beside_each_other(tmp_path):
    pieces = [
        (s, p, -90 * p, 60, {"correlation_id": gpu.number(0, s, 0), "cuda_graph_node_id": 30 + p})
        for s in range(STEPS)
        for p in range(5)
    ]
    assert law_of(tmp_path, pieces).verdict == "ok"


def test_a_stream_whose_pieces_enclose_each_other_fails(tmp_path):
    """Work of another stream on the same line: `durations` leaves its lengths as they are."""
    pieces = [
        (s, p, shift, length, {"correlation_id": gpu.number(0, s, p) + 50 * (shift > 0)})
        for s, p, shift, length, _ in each((0, 90, {}), (20, 45, {}))
    ]
    found = law_of(tmp_path, pieces)
    assert (found.verdict, found.expected, found.found) == ("fail", 5 * 90, 5 * 135)
    assert "enclose each other" in law_of(tmp_path, pieces, name="durations").detail


def test_a_kernel_may_begin_while_the_one_before_it_drains(tmp_path):
    assert law_of(tmp_path, each((0, 106, {}))).verdict == "ok"  # by programmatic launch
