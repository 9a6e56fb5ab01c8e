"""Waits for streams, events and contexts are recorded beside the work: no figure counts them."""

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.work import hlo, kernel, traced
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.analyzers import analyze
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.ops import ops
from moeprof.analyzers.questions.step_time import step_time
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run

PROGRAM = hlo_proto(computation("main", op("a2a", "all-to-all", "f32[8]")))
STARTS = [100_000 * step + 1000 for step in range(6)]


def opened(folder, **of_wait):
    """Six steps, each a kernel of 20 µs and a wait of 90 µs that begins with it."""
    work = [
        event("k", at, 20_000, hlo_op=Ref("a2a"), program_id=7, correlation_id=step)
        for step, at in enumerate(STARTS)
    ]
    waits = [event("Stream Sync", at, 90_000, **of_wait) for at in STARTS]
    lines = (
        line("Stream #1(Compute)", *work),
        line("Stream #2(Sync)", *waits),
        line("XLA Modules", *(event("jit_step", at, 95_000) for at in STARTS)),
    )
    file = folder / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(), Plane("/device:GPU:0", lines)))
    return open_run(file)


def headline(found):
    return {metric.metric: metric.value for metric in found.headline}


@pytest.mark.parametrize("of_wait", [{}, {"program_id": 7}, {"hlo_op": Ref("a2a")}])
def test_a_wait_is_no_work_of_a_step_whatever_it_carries(tmp_path, of_wait):
    trace = opened(tmp_path, **of_wait)
    assert trace.steps["duration_ns"].tolist() == [20_000] * 6
    assert trace.executions["busy_ns"].tolist() == [20_000] * 6
    is_wait = trace.events["kind"] == "sync"
    assert trace.events["self_ns"][is_wait].tolist() == [0] * 6
    assert trace.events["step"][is_wait].tolist() == [0, 1, 2, 3, 4, 5]
    found = analyze(trace, ["step_time", "breakdown", "ops", "timeline"])
    assert found["step_time"].table["busy_share"].tolist() == [1.0] * 6
    figures = headline(found["breakdown"])
    assert (figures["op_time"], figures["busy_time"]) == (20_000, 20_000)
    assert figures["unattributed_share"] == 0
    assert found["ops"].table["calls"].tolist() == [1.0]
    assert headline(found["timeline"])["idle_share"] == 0
    (resolved,) = (check for check in trace.trust if check.check == "resolved")
    assert resolved.verdict == "ok"
    assert "6 of 6 device events, 100.0 %" in resolved.detail


def test_made_up_tables_with_waits_give_the_same_figures():
    wait = kernel("", 0, 90, name="Event Sync", kind="sync", line="2")
    trace = traced((kernel("dot", 0, 20), wait), (hlo("dot", "dot"),), {0: (0, 20)})
    assert step_time(trace).table["busy_share"].tolist() == [1.0]
    assert headline(breakdown(trace))["op_time"] == 20
    assert ops(trace).table["op"].tolist() == ["dot"]


def test_without_a_step_the_capture_spans_its_work_not_its_waits():
    wait = kernel("", 0, 90, name="Event Sync", kind="sync", line="2", step=-1)
    trace = traced((kernel("dot", 10, 20, step=-1), wait), (hlo("dot", "dot"),), {})
    assert timeline(trace).table["duration_ns"].tolist() == [20]


def test_work_that_outlasts_its_step_is_busy_only_within_it():
    work = (kernel("dot", 0, 20), kernel("", 15, 50, name="late", line="2"))
    trace = traced(work, (hlo("dot", "dot"),), {0: (0, 40)})
    assert step_time(trace).table["busy_share"].tolist() == [1.0]  # 40 of 40, not 65
    figures = headline(breakdown(trace))
    assert (figures["op_time"], figures["busy_time"]) == (70, 40)
