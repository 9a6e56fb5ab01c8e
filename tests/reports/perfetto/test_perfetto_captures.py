"""What Perfetto's trace processor finds in traces of real captures equals the tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from trace_processor import Engine

from moeprof.analyzers import analyze
from moeprof.analyzers.attribution import work_in_steps
from moeprof.analyzers.communication.waits import waits_in_steps
from moeprof.analyzers.questions.launch import queued
from moeprof.analyzers.window import window
from moeprof.ingest import open_run
from moeprof.reports.perfetto import Written, write_perfetto
from moeprof.tables.trace import Trace

DATA = Path(__file__).parents[2] / "data"
CAPTURES = {
    "gpu": DATA / "gpu" / "sparse-gmm-deepep-graphs",
    "cpu": DATA / "maxtext" / "deepseek3_tiny_fsdp8_ragged_dot.xplane.pb.gz",
}


@dataclass(frozen=True)
class Case:
    trace: Trace
    written: Written
    engine: Engine


@pytest.fixture(scope="module", params=list(CAPTURES))
def case(request, tmp_path_factory, engine) -> Case:
    file = tmp_path_factory.mktemp("perfetto") / "x.pftrace"
    trace = open_run(CAPTURES[request.param])
    written = write_perfetto(trace, file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOEPROF_READER", "python")
        assert write_perfetto(trace, file.with_name("slow.pftrace")) == written
    assert file.read_bytes() == file.with_name("slow.pftrace").read_bytes()
    engine.load(file)
    engine.execute_query(VIEW)
    return Case(trace, written, engine)


VIEW = """
create perfetto view piece as
select slice.*, process.name as process, track.name as track,
  extract_arg(slice.arg_set_id, 'debug.step') as step,
  extract_arg(slice.arg_set_id, 'debug.phase') as phase,
  coalesce(extract_arg(slice.arg_set_id, 'debug.self_ns'), slice.dur) as self_ns
from slice join process_track track on slice.track_id = track.id join process using (upid)
"""
DOC = Path(__file__).parents[3] / "docs" / "perfetto.md"
WORK = "extract_arg(arg_set_id, 'debug.recorded as') is not null"


def test_nothing_is_wrong_with_the_file(case):
    assert case.engine.errors() == []
    assert case.engine.one("select count(*) from slice") == case.written.slices
    assert case.engine.one("select count(*) from counter") == case.written.counter_values
    assert case.engine.one("select count(*) from slice where dur < 0") == 0


def test_each_stream_has_its_work(case):
    found = case.engine.rows(
        f"""select process, track, count(*) as pieces, sum(dur) as length, sum(self_ns) as own
        from piece where {WORK} group by 1, 2"""
    )
    by_stream: dict[tuple[str, str], np.ndarray] = {}
    for process, track, *sums in found:
        stream = (process.split(":")[0], track.split(" (overlapping")[0])
        by_stream[stream] = by_stream.get(stream, 0) + np.array(sums)
    events = case.trace.events.astype({"host": "str", "line": "str"}).merge(case.trace.devices)
    expected = events.groupby(["rank", "line"]).agg(
        pieces=("name", "size"), length=("duration_ns", "sum"), own=("self_ns", "sum")
    )
    assert {stream: sums.tolist() for stream, sums in by_stream.items()} == {
        (f"rank {rank}", line): row.tolist() for (rank, line), row in expected.iterrows()
    }


def test_self_times_by_component_phase_rank_and_step_are_those_of_the_breakdown(case):
    query = """select category, phase, cast(substr(process, 6, 1) as int), step, sum(self_ns)
        from piece where {} and step in {} group by 1, 2, 3, 4"""
    steps = f"({','.join(map(str, window(case.trace).events.pandas()['step'].unique()))})"
    work = work_in_steps(case.trace).pandas().astype({"host": "str"}).merge(case.trace.devices)
    keys = ["component", "phase", "rank", "step"]
    expected = work.groupby(keys, observed=True)["self_ns"].sum()
    for what in (WORK, "track like 'MoE components%'"):
        found = {tuple(row[:4]): row[4] for row in case.engine.rows(query.format(what, steps))}
        assert found == {key: value for key, value in expected.items() if value or key in found}
    table = analyze(case.trace, ["breakdown"])["breakdown"].table
    assert sum(found.values()) == pytest.approx(
        table["per_step_ns"].sum() * window(case.trace).shares, rel=1e-12
    )


def test_gaps_are_those_of_sync_gaps(case):
    found = case.engine.rows(
        """select name, coalesce(extract_arg(arg_set_id, 'debug.component that ran next'), ''),
        sum(dur), count(*), max(dur) from piece where track like 'Gaps%' group by 1, 2"""
    )
    table = analyze(case.trace, ["sync_gaps"])["sync_gaps"].table
    shares = window(case.trace).shares
    expected = {
        (row.cause.replace("short gaps", "short gap"), row.component): (
            round(row.per_step_ns * shares), round(row.gaps * shares), row.longest_ns,
        )
        for row in table.itertuples()
    }  # fmt: skip
    assert {row[:2]: row[2:] for row in found} == expected


def test_waits_and_transfers_are_those_of_the_collectives(case):
    waits = waits_in_steps(case.trace).pandas()
    query = """select count(*), sum(dur) from piece where track like 'Collectives%' and {}"""
    assert case.engine.rows(query.format("depth = 0")) == [(len(waits), waits["duration_ns"].sum())]
    known = waits[waits["wait_ns"].notna()]
    assert len(known) > 0
    assert case.engine.rows(query.format("category = 'wait'")) == [
        ((known["wait_ns"] > 0).sum(), known["wait_ns"].sum())
    ]
    assert case.engine.rows(query.format("category = 'transfer'")) == [
        (len(known), known["transfer_ns"].sum())
    ]
    table = analyze(case.trace, ["collectives"])["collectives"].table.set_index("op")
    found = case.engine.rows(
        """select call.name as op, sum(part.dur) as wait from piece part
        join slice call on part.parent_id = call.id
        where part.category = 'wait' group by 1"""
    )
    shares = window(case.trace).shares
    assert dict(found) == pytest.approx(
        {op: wait * shares for op, wait in table["wait_ns"].groupby(level=0).sum().items() if wait}
    )


def test_an_arrow_leads_from_each_launch_to_its_first_piece(case):
    arrows = case.engine.rows(
        """select a.ts as called, a.dur as length, b.ts as begun from flow
        join slice a on slice_out = a.id join slice b on slice_in = b.id order by 1, 2, 3"""
    )
    joined = queued(case.trace).pandas()
    assert len(arrows) == len(joined) == case.written.flows
    expected = zip(joined["launch_ns"], joined["call_ns"], joined["start_ns"], strict=True)
    assert arrows == sorted(expected)


def test_steps_and_annotations_are_there(case):
    steps = case.engine.rows("select name, ts, dur from piece where track = 'Steps' order by ts")
    table = case.trace.steps
    assert steps == [
        (f"step {s}", start, length)
        for s, start, length in zip(
            table["step"], table["start_ns"], table["duration_ns"], strict=True
        )
    ]
    marks = case.engine.rows("select name from piece where track = 'Step annotations' order by ts")
    assert [name for (name,) in marks] == [f"train {n}" for n in case.trace.markers["step"]]
    threads = case.engine.one("select count(*) from piece where category = 'launch'")
    assert threads == len(case.trace.launches)
    kinds = dict(case.engine.rows(
        """select extract_arg(arg_set_id, 'debug.kind') as kind, count(*) from piece
        where process like 'host %' and kind is not null and kind != 'launch' group by 1"""
    ))  # fmt: skip
    assert kinds == case.trace.host_events["kind"].value_counts().to_dict()


def counters(case: Case, name: str) -> pd.DataFrame:
    rows = case.engine.rows(
        f"""select process.name as process, track.name as track, ts, value from counter
        join process_counter_track track on track_id = track.id join process using (upid)
        where track.name glob '{name}' order by 1, 2, ts"""
    )
    return pd.DataFrame(rows, columns=["process", "track", "ts", "value"])


def test_the_planned_memory_peaks_where_the_compiler_says(case):
    found = counters(case, "Memory, planned by the compiler: *")
    assert found["process"].nunique() == len(case.trace.devices)
    table = analyze(case.trace, ["memory"])["memory"].table
    peaks = found.groupby("process")["value"].max()
    assert peaks.tolist() == [table["size_bytes"].sum()] * len(peaks)
    assert found.groupby("process")["value"].last().eq(0).all()


def test_recorded_routing_has_counters(case):
    load, used = counters(case, "*layer*"), counters(case, "used, of the worst case")
    if case.trace.routing.empty:
        assert load.empty
        assert used.empty
        assert any(text.startswith("routing: ") for text in case.written.missing)
        return
    routing = case.trace.routing[
        case.trace.routing["step"].isin(window(case.trace).events.pandas()["step"])
    ]
    tokens = routing.groupby(["step", "layer", "expert"])["tokens"].sum()
    places = tokens.groupby(["step", "layer"])
    ratio = places.max() / places.mean()
    starts = case.trace.steps.set_index("step")["start_ns"]
    for (step, layer), value in ratio.items():
        at = load[load["track"].eq(f"layer {layer}") & load["ts"].eq(starts[step])]
        assert at["value"].tolist() == [value]
    worst = load[load["track"].eq("worst layer")]
    assert worst["value"].max() == ratio.max()
    headline = analyze(case.trace, ["receive_buffers"])["receive_buffers"].headline
    mean = next(metric.value for metric in headline if metric.metric == "utilisation")
    assert used["value"].iloc[:-1].mean() == pytest.approx(100 * mean)


@pytest.mark.parametrize("query", re.findall(r"```sql\n(.+?)```", DOC.read_text(), re.DOTALL))
def test_queries_of_the_page_have_answers(case, query):
    assert case.engine.rows(query) or (" flow " in query and case.trace.launches.empty)


def test_the_page_names_the_tracks(case):
    text = DOC.read_text()
    names = [name for (name,) in case.engine.rows("select distinct name from process_track")]
    own = [name for name in names if name[0].isupper() and "(overlapping" not in name]
    assert all(f"| {name.split(' #')[0]}" in text for name in own)
