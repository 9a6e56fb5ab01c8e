"""Traces made by hand, as Perfetto's trace processor finds them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders.sessions import two_hosts
from builders.work import hlo, kernel, traced
from builders.xspace import Plane, Ref, event, line, xspace
from trace_processor import Engine

from moeprof.errors import MoeprofError
from moeprof.ingest import open_run
from moeprof.reports.perfetto import Written, write_perfetto
from moeprof.tables import trace as tables
from moeprof.tables.host_side import ALLOCATIONS
from moeprof.tables.law import Law, Scope
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.trace import HostClock, Trace

SLICES = """select process.name as process, track.name as track, slice.name as name, ts, dur
from slice join process_track track on track_id = track.id join process using (upid)
where {} order by 1, 2, ts, dur desc, slice.id"""


@pytest.fixture
def written(engine: Engine, tmp_path: Path, monkeypatch) -> Callable[[Trace], Written]:
    """Write a trace, whole and alone in its folder, and load it; the slow twin writes the same."""

    def write(trace: Trace) -> Written:
        monkeypatch.setenv("MOEPROF_READER", "python")
        slow = write_perfetto(trace, tmp_path / "slow.pftrace")
        monkeypatch.setenv("MOEPROF_READER", "native")
        found = write_perfetto(trace, tmp_path / "x.pftrace")
        assert found == slow
        same = (tmp_path / "slow.pftrace").read_bytes() == (tmp_path / "x.pftrace").read_bytes()
        assert same  # a diff of two files of this size would take minutes
        assert [p.name for p in tmp_path.glob("*tmp*")] == []
        engine.load(tmp_path / "x.pftrace")
        assert engine.errors() == []
        return found

    return write


def slices(engine: Engine, where: str = "true") -> list[tuple]:
    """(track, name, start, length), by process and track."""
    return [row[1:] for row in engine.rows(SLICES.format(where))]


def notes(engine: Engine, name: str) -> dict[str, object]:
    """What a click on the slice of this name shows."""
    query = """select key, coalesce(string_value, real_value, int_value) as value
        from args join slice using (arg_set_id) where slice.name = '{}'"""
    return {key.removeprefix("debug."): value for key, value in engine.rows(query.format(name))}


def filled(schema, *rows):
    """A frame of rows that say what they must; the rest is empty."""
    empty = {"text": "", "label": "", "bool": False}
    known = {column.name: empty.get(column.kind, -1) for column in schema.columns}
    return schema.frame([{**known, **row} for row in rows])


def counters(engine: Engine, name: str) -> list[tuple]:
    """(name, unit, stamp, value) of the counters of a name, by name and time."""
    return engine.rows(
        f"""select name, unit, ts, value from counter
        join process_counter_track track on track_id = track.id
        where name glob '{name}' order by 1, 3"""
    )


def gpu(folder: Path, *kernels, stream: str = "Stream #13(Kernel)") -> Trace:
    work = [event(name, start, length, hlo_op=Ref(op)) for name, op, start, length in kernels]
    folder.mkdir(exist_ok=True)
    (folder / "h.xplane.pb").write_bytes(xspace(Plane("/device:GPU:3", (line(stream, *work),))))
    return open_run(folder / "h.xplane.pb")


def test_a17_partly_overlapping_events_lie_on_tracks_of_their_own(tmp_path, engine, written):
    events = [
        {
            "ph": "X",
            "name": name,
            "pid": 1,
            "tid": 7,
            "ts": ts,
            "dur": dur,
            "args": {"hlo_op": name},
        }
        for name, ts, dur in (("first", 10, 6), ("second", 13, 9))
    ]
    names = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "Stream #7"}},
    ]
    (tmp_path / "x.trace.json").write_text(json.dumps({"traceEvents": [*names, *events]}))
    written(open_run(tmp_path / "x.trace.json"))
    assert slices(engine, "track.name glob 'Stream*'") == [
        ("Stream #7", "first", 10_000, 6000),
        ("Stream #7 (overlapping, 2)", "second", 13_000, 9000),
    ]


def test_every_piece_of_work_is_there_with_its_stamps_and_op(tmp_path, engine, written):
    hostile = "<script>\u202e\N{CHERRY BLOSSOM}" + "x" * 10_000
    kernels = [("k1", "dot.1", 100, 50), ("k2", "", 150, 7), ("k3", "add", 160, 0)]
    trace = gpu(tmp_path / "run", *kernels, (hostile, "", 170, 5))
    written(trace)
    assert slices(engine, "track.name glob 'Stream*'") == [
        ("Stream #13(Kernel)", "dot.1", 100, 50),
        ("Stream #13(Kernel)", "k2", 150, 7),
        ("Stream #13(Kernel)", "add", 160, 0),
        ("Stream #13(Kernel)", hostile, 170, 5),
    ]
    assert engine.rows("select pid, name from process where pid > 0 order by pid") == [
        (1, "rank 0: h device 3"), (2, "host h"),
    ]  # fmt: skip
    assert notes(engine, "dot.1") == {
        "op": "dot.1", "recorded as": "k1", "kind": "kernel", "component": "unattributed",
        "phase": "other", "layer": "outside", "evidence": "none", "confidence": 0.0,
    }  # fmt: skip


def test_sums_equal_the_tables_where_work_nests_and_overlaps(tmp_path, engine, written):
    kernels = [(f"k{at}", f"op.{at}", 100 + 7 * at, 5 + (at * 37) % 60) for at in range(200)]
    trace = gpu(tmp_path / "run", *kernels, stream="Stream #1")
    written(trace)
    found = slices(engine, "track.name glob 'Stream*'")
    assert len(found) == len(trace.events) == 200
    starts = dict(zip(trace.events["op"], trace.events["start_ns"], strict=True))
    assert all(starts[name] == start for _, name, start, _ in found)
    assert sum(length for *_, length in found) == trace.events["duration_ns"].sum()


def test_steps_say_why_they_are_left_out_and_hosts_whose_clock_it_is(tmp_path, engine, written):
    trace = open_run(two_hosts(tmp_path / "run"))
    steps = trace.steps.assign(used=[True, False, True], reason=["", "late", ""])
    written(replace(trace, steps=steps))
    names = [name for (name,) in engine.rows("select name from process where pid > 0")]
    assert names == [
        f"{what} (its host's own clock)"
        for what in ("hostA device 0", "hostB device 0")  # nothing tells their ranks
    ] + [f"host {host} (its host's own clock)" for host in ("hostA", "hostB")]
    assert slices(engine, "track.name = 'Steps'") == 2 * [
        ("Steps", f"step {step}", 1000 * step + 10, 100) for step in range(3)
    ]
    assert notes(engine, "step 0") == {"used": 1}
    assert notes(engine, "step 1") == {"used": 0, "left out because": "late"}


def test_hosts_lie_on_the_common_clock_and_nothing_before_zero(engine, written):
    events = [kernel("a", 100, 50), kernel("b", 500, 50, host="b")]
    clocks = (HostClock("a", 0, 0, 0, 0), HostClock("b", 700, 0, 0, 9))
    written(traced(events, clocks=clocks))
    # b began at 500 - 700 = -200 by the common clock; all is moved by 200
    found = dict(engine.rows("select name, ts from slice where name in ('a', 'b')"))
    assert found == {"a": 300, "b": 0}


def test_a_collective_is_waiting_and_transfer_and_a_gap_has_its_cause(engine, written):
    """Rank 0 comes at 100 000, rank 1 at 130 000; both leave at 180 000: 30 000 are waiting."""
    ops = [hlo("all-reduce.1", "all-reduce", size_bytes=64), hlo("dot.1", "dot")]
    events = [
        kernel("dot.1", 0, 90_000),
        kernel("all-reduce.1", 100_000, 80_000),
        kernel("dot.1", 0, 110_000, device=1),
        kernel("all-reduce.1", 130_000, 50_000, device=1),
    ]
    found = written(traced(events, ops))
    assert slices(engine, "track.name = 'Collectives'") == [
        ("Collectives", "all-reduce.1", 100_000, 80_000),
        ("Collectives", "wait for rank 1", 100_000, 30_000),
        ("Collectives", "transfer", 130_000, 50_000),
        ("Collectives", "all-reduce.1", 130_000, 50_000),
        ("Collectives", "transfer", 130_000, 50_000),
    ]
    assert slices(engine, "track.name = 'Gaps'") == [
        ("Gaps", "short gap", 90_000, 10_000), ("Gaps", "unknown", 110_000, 20_000),
    ]  # fmt: skip
    assert notes(engine, "unknown")["ran next"] == "all-reduce.1"
    assert found.missing[0].startswith("memory: the capture has no events of an allocator")


def test_a_collective_without_its_peer_has_no_invented_parts(engine, written):
    ops = [hlo("all-reduce.1", "all-reduce", replica_groups="{{0,1}}")]
    found = written(traced([kernel("all-reduce.1", 100, 80)], ops))
    names = [name for _, name, *_ in slices(engine, "track.name = 'Collectives'")]
    assert names == ["all-reduce.1"]
    assert found.missing[0].startswith("collectives: of 1 of 1 calls nothing tells wait")


def test_an_arrow_leads_from_a_launch_to_the_first_piece_of_a_graph(engine, written):
    events = [
        kernel("a", 500, 50, correlation_id=7),
        kernel("b", 560, 50, correlation_id=7),
        kernel("c", 700, 50, correlation_id=8),
    ]
    launches = [
        {"host": "a", "line": "t", "name": "cuGraphLaunch", "correlation_id": 7, "start_ns": 400},
        {"host": "a", "line": "t", "name": "memset", "correlation_id": 9, "start_ns": 600},
    ]
    launches = [{**row, "duration_ns": 20} for row in launches]
    found = written(traced(events, launches=launches))
    assert found.flows == 1
    assert engine.rows(
        """select a.name as called, b.name as begun from flow
        join slice a on slice_out = a.id join slice b on slice_in = b.id"""
    ) == [("cuGraphLaunch", "a")]
    assert slices(engine, "track.name = 't'") == [
        ("t", "cuGraphLaunch", 400, 20), ("t", "memset", 600, 20),
    ]  # fmt: skip


def test_measured_memory_is_a_counter_of_each_pool(engine, written):
    pool = {"host": "a", "device": 0, "allocator": "GPU_0_bfc"}
    rows = [
        {**pool, "start_ns": at, "allocated_bytes": used}
        for at, used in ((10, 4096), (20, 8192), (25, 8192), (30, -1), (40, 2**40))
    ]
    written(replace(traced([kernel("k", 0, 100)]), allocations=filled(ALLOCATIONS, *rows)))
    assert counters(engine, "*") == [
        ("Memory in use, measured: GPU_0_bfc", "bytes", at, used)
        for at, used in ((10, 4096), (20, 8192), (40, 2**40))
    ]


def test_planned_memory_follows_the_ops_of_the_step(engine, written):
    """By the plan live bytes are 50, 70, 25 as a, b, c are written.

    Arguments and results of 100 + 40 - 10 are there always, and 90 - 70 between the buffers.
    """
    program = {"module": 7, "name": "jit_step", "instructions": 3, "executions": 1}
    sizes = {"argument_bytes": 100, "output_bytes": 40, "alias_bytes": 10, "temp_bytes": 90}
    lives = (("a", 50, 0, 2), ("b", 20, 1, 3), ("c", 5, 2, 3))
    places = [
        {"module": 7, "op": op, "size_bytes": size, "live_from": born, "live_to": freed}
        | {"trace": 0, "allocation": 1, "offset_bytes": 64 * born, "kind": "temp"}
        for op, size, born, freed in lives
    ]
    ran = {"host": "a", "device": 0, "module": 7, "run_id": 1, "step": 0, "start_ns": 10}
    events = [kernel("a", 10, 5), kernel("b", 20, 5), kernel("c", 30, 10)]
    made = traced(events, [hlo(op, "add") for op in "abc"])
    trace = replace(
        made,
        modules=filled(tables.MODULES, program | sizes),
        buffers=filled(tables.BUFFERS, *places),
        executions=filled(tables.EXECUTIONS, ran | {"duration_ns": 30}),
        steps=made.steps.assign(module=7),
    )
    written(trace)
    assert counters(engine, "Memory*") == [
        ("Memory, planned by the compiler: jit_step", "bytes", at, value)
        for at, value in ((10, 200), (20, 220), (30, 175), (40, 0))
    ]


def test_imbalance_is_the_busiest_expert_over_the_mean(engine, written):
    """Of layer 3 the experts get 6, 2, 0, 0 tokens, so 3 times the mean; of layer 5 2, 2, 2, 2."""
    tokens = {3: (6, 2, 0, 0), 5: (2, 2, 2, 2)}
    rows = [
        {"step": 0, "layer": layer, "expert": expert, "rank": expert // 2, "tokens": count}
        for layer, counts in tokens.items()
        for expert, count in enumerate(counts)
    ]
    made = traced([kernel("k", 100, 50)])
    meta = replace(made.meta, are_steps_numbered_by_script=True)
    none = RECEIVED.frame()
    written(replace(made, meta=meta, routing=filled(ROUTING, *rows), received=none))
    assert [(name, at, value) for name, _, at, value in counters(engine, "*layer*")] == [
        (name, at, value)
        for name, value in (("layer 3", 3.0), ("layer 5", 1.0), ("worst layer", 3.0))
        for at in (100, 150)
    ]


def test_what_a_failed_check_would_falsify_is_left_out_and_said(engine, written):
    check = Law("dropped", "fail", "9 events lost", withholds=("breakdown", "sync_gaps"))
    trace = replace(traced([kernel("a", 0, 5), kernel("b", 50_000, 5)]), trust=(check,))
    found = written(trace)
    assert [name for _, name, *_ in slices(engine)] == ["step 0", "a", "b"]
    assert found.missing[:2] == (
        "components: withheld: dropped: 9 events lost", "gaps: withheld: dropped: 9 events lost",
    )  # fmt: skip


def test_a_law_of_the_answer_and_scopes_of_whole_figures_count_too(engine, written, monkeypatch):
    broken = Law("components", "fail", "do not add up", withholds=("breakdown",))
    monkeypatch.setattr("moeprof.analyzers.laws.LAWS", (lambda _: broken,))
    late = Law("causality", "warn", "apart", scopes=(Scope("sync_gaps", ("late_ns",)),))
    trace = traced([kernel("a", 0, 5), kernel("b", 50_000, 5)])
    found = written(replace(trace, trust=(late,)))
    assert found.missing[0] == "components: withheld: components: do not add up"
    assert "launched in time" not in [name for _, name, *_ in slices(engine)]
    assert "unknown" in [name for _, name, *_ in slices(engine)]  # the gap's cause is not withheld
    causes = Law("x", "warn", "why", scopes=(Scope("sync_gaps", ("cause",)),))
    found = written(replace(trace, trust=(causes,)))
    assert "gaps: withheld: x: why" in found.missing
    one_host = Law("truncated", "warn", "cut", scopes=(Scope("sync_gaps", host="a"),))
    found = written(replace(trace, trust=(one_host,)))
    assert "gaps of a: withheld: truncated: cut" in found.missing
    assert "unknown" not in [name for _, name, *_ in slices(engine)]


def test_a_trace_without_work_is_written_and_says_so(tmp_path, engine, written):
    (tmp_path / "h.xplane.pb").write_bytes(xspace(Plane("/host:CPU", (line("t"),))))
    found = written(open_run(tmp_path / "h.xplane.pb"))
    assert slices(engine) == []
    assert found.missing[:2] == (
        "no slice: nothing of this run can be drawn over time",
        "no device work in this capture: devices have no track",
    )


def test_progress_is_told_to_the_end(tmp_path):
    told: list[tuple[int, ...]] = []
    trace = traced([kernel("a", 100, 50)])
    found = write_perfetto(
        trace, tmp_path / "x.pftrace", lambda done, all: told.append((done, all))
    )
    assert told[-1] == (found.slices, found.slices)


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    trace = traced([kernel("a", 100, 50)])
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(MoeprofError, match=r"expected the package perfetto.*moeprof\[perfetto\]"):
        write_perfetto(trace, tmp_path / "x.pftrace")


def test_a_folder_that_is_not_there_is_said_in_one_line_and_nothing_is_left(tmp_path):
    trace = traced([kernel("a", 100, 50)])
    with pytest.raises(MoeprofError, match=r"x\.pftrace: cannot be written \(No such file"):
        write_perfetto(trace, tmp_path / "absent" / "x.pftrace")
