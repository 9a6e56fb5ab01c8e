import json

import numpy as np
import pytest
from builders.chrome import kernel, text, write

from moeprof.ingest import open_run
from moeprof.ingest.chrome_json.device_work import done_ns
from moeprof.ingest.chrome_json.gathered import nanoseconds
from moeprof.ingest.chrome_json.named_ops import callers, partly_overlapping
from moeprof.ingest.planes.record import distinct
from moeprof.tables.trace import Trace


def array(*values):
    return np.array(values, dtype=np.int64)


def opened(tmp_path, events, name="node0.trace.json") -> Trace:
    return open_run(write(tmp_path / name, json.dumps({"traceEvents": events})))


def named(pid, name, tid=None):
    what = "process_name" if tid is None else "thread_name"
    where = {} if tid is None else {"tid": tid}
    return {"ph": "M", "pid": pid, "name": what, "args": {"name": name}, **where}


def piece(pid, tid, name, ts, dur, /, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


def on_cpu(op, tid, ts, dur):
    return piece(701, tid, op, ts, dur, hlo_op=op, hlo_module="jit_f", run_id="1")


HOST = named(701, "/host:CPU")


def self_us(trace):
    return (
        trace.events.groupby(trace.events["op"].astype("str"))["self_ns"].sum() // 1000
    ).to_dict()


def test_a_loop_gives_up_the_time_of_its_body_on_other_threads_too(tmp_path):
    loop = [on_cpu("while.1", 1, 10, 100), on_cpu("dot.2", 1, 20, 30), on_cpu("dot.2", 2, 60, 30)]
    assert self_us(opened(tmp_path, [HOST, *loop])) == {"while.1": 40, "dot.2": 60}


def test_an_op_beside_another_one_is_not_taken_for_its_body(tmp_path):
    beside = [on_cpu("dot.1", 1, 10, 100), on_cpu("dot.2", 2, 20, 30)]
    assert self_us(opened(tmp_path, [HOST, *beside])) == {"dot.1": 100, "dot.2": 30}


def test_an_op_lasts_until_its_end_on_another_thread(tmp_path):
    late = [on_cpu("dot.1", 1, 10, 5), piece(701, 2, "end: dot.1", 30, 1)]
    trace = opened(tmp_path, [HOST, *late])
    assert trace.events["duration_ns"].tolist() == [20_000]


def test_ends_pair_by_order_on_one_device_and_not_on_two():
    op, start, end = array(1, 1), array(10, 40), array(15, 45)
    done, untold = done_ns((op, array(0, 0), start, end), (array(1, 1), array(60, 30)))
    assert (done.tolist(), untold) == ([30, 60], 0)
    done, untold = done_ns((op, array(0, 1), start, end), (array(1, 1), array(60, 30)))
    assert (done.tolist(), untold) == ([15, 45], 2)
    done, untold = done_ns((op, array(0, 1), start, end), (array(1, 1), array(44, 14)))
    assert (done.tolist(), untold) == ([15, 45], 0)


def test_no_op_calls_itself_in_the_end():
    # 1 lies in 2 twice, 2 in 1 once, as a thread that waits may run what else is due
    op, track = array(2, 1, 2, 1, 1, 2), array(0, 0, 0, 0, 1, 1)
    start, end = array(0, 1, 20, 21, 0, 1), array(10, 9, 30, 29, 10, 9)
    assert callers(op, track, start, end) == {1: 2}


def test_what_the_rounding_of_the_format_makes_overlap_is_not_counted():
    none = array(0, 0)
    assert partly_overlapping(none, none, array(10, 19), array(20, 30)) == 0
    assert partly_overlapping(none, none, array(10, 17), array(20, 30)) == 1


def tpu_step(number, ts):
    return [
        piece(3, 1, str(number), ts, 500),
        piece(3, 2, "jit_step(123)", ts, 500, run_id=str(number + 5)),
        piece(3, 3, "while.1", ts, 400, tf_op="jit(step)/while"),
        piece(3, 3, "fusion.2", ts + 10, 100, tf_op="jit(step)/moe/router"),
        piece(3, 4, "copy-start.3", ts + 20, 50),
    ]


TPU = [
    named(3, "/device:TPU:0"),
    named(3, "Steps", 1),
    named(3, "XLA Modules", 2),
    named(3, "XLA Ops", 3),
    named(3, "Async XLA Ops", 4),
]


def test_a_tpu_s_ops_get_program_execution_step_and_scope_from_its_other_lines(tmp_path):
    trace = opened(tmp_path, [*TPU, *tpu_step(7, 10), *tpu_step(8, 1010)])
    assert trace.meta.platform == "tpu"
    assert trace.modules["name"].tolist() == ["jit_step"]
    assert trace.steps[["step", "used"]].to_numpy().tolist() == [[7, True], [8, True]]
    assert trace.events["run_id"].tolist() == [12] * 3 + [13] * 3
    assert trace.events["name"].tolist()[:3] == ["while.1", "fusion.2", "copy-start.3 in flight"]
    assert self_us(trace) == {"while.1": 600, "fusion.2": 200, "copy-start.3": 100}
    paths = trace.hlo_ops.set_index("op")["op_name"]
    assert paths["fusion.2"] == "jit(step)/moe/router"


def test_a_sparse_core_works_in_the_executions_of_its_device(tmp_path):
    core = [named(4, "/device:TPU:0 SparseCore 1"), named(4, "Sparse Core Ops", 1)]
    trace = opened(tmp_path, [*TPU, *core, *tpu_step(7, 10), piece(4, 1, "gather.9", 30, 5)])
    mine = trace.events[trace.events["op"] == "gather.9"]
    assert mine["line"].tolist() == ["SparseCore 1: Sparse Core Ops"]
    assert mine[["device", "run_id", "step"]].to_numpy().tolist() == [[0, 12, 7]]


def test_ranks_are_those_that_pytorch_s_traces_tell(tmp_path):
    for file, rank in (("a", 1), ("b", 0)):
        event = {**piece(0, 7, "g", 10, 3, device=rank, stream=7), "cat": "kernel"}
        content = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": [event]})
        write(tmp_path / f"{file}.pt.trace.json", content)
    devices = open_run(tmp_path).devices
    assert devices[["host", "rank"]].to_numpy().tolist() == [["b.pt", 0], ["a.pt", 1]]


def test_no_program_is_claimed_where_there_is_none(tmp_path):
    content = text([kernel("k", 10)])
    trust = {c.check: c for c in open_run(write(tmp_path / "a.trace.json", content)).trust}
    assert trust["programs"].verdict == "warn"
    assert trust["programs"].detail.startswith("no compiled program")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (12, 12_000),
        ("337724.192", 337_724_192),
        ("1700000000000000.123", 1_700_000_000_000_000_123),
        ("5.44", 5_440),
        ("1e3", 1_000_000),
        ("-1.0005", -1_001),
        ("NaN", None),
        (float("nan"), None),
        (True, None),
        ("1e999", None),
        (None, None),
    ],
)
def test_microseconds_become_nanoseconds_exactly(written, expected):
    assert nanoseconds(written) == expected


@pytest.mark.parametrize("values", [(), (0,), (3, 0, 3, 7), (5, 2**40, 5), (0, 2**62, 1)])
def test_distinct_numbers_are_those_of_numpy_s_unique_whether_counted_or_sorted(values):
    found = distinct(array(*values))
    expected = np.unique(array(*values), return_inverse=True)
    assert [part.tolist() for part in found] == [part.tolist() for part in expected]
