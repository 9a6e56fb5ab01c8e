"""What Perfetto's own messages say of a trace that was written for it."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from builders.xspace import Plane, Ref, event, line, xspace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as PerfettoTrace

from moeprof.errors import MoeprofError
from moeprof.ingest import open_run
from moeprof.reports.perfetto import write_perfetto
from moeprof.tables.trace import Trace


class Read:
    """A written trace: names of tracks, processes of tracks, and slices by track, as a viewer
    pairs them: an end closes what began last on its track."""

    def __init__(self, file: Path) -> None:
        read = PerfettoTrace.FromString(file.read_bytes())
        self.names: dict[int, str] = {}
        self.process: dict[int, int] = {}
        self.slices: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.shown: dict[str, dict[str, object]] = {}
        for packet in read.packet:
            if packet.HasField("track_descriptor"):
                described = packet.track_descriptor
                self.names[described.uuid] = described.name
                self.process[described.uuid] = described.parent_uuid or described.uuid
        self._pair(
            sorted((p for p in read.packet if p.HasField("track_event")), key=lambda p: p.timestamp)
        )

    def _pair(self, packets) -> None:
        open_ones: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for packet in packets:  # sorting is stable: equal stamps stay as they were written
            found = packet.track_event
            if found.type == found.TYPE_SLICE_BEGIN:
                open_ones[found.track_uuid].append((found.name, packet.timestamp))
                notes = found.debug_annotations
                self.shown[found.name] = {n.name: getattr(n, n.WhichOneof("value")) for n in notes}
            else:
                name, start = open_ones[found.track_uuid].pop()
                self.slices[found.track_uuid].append((name, start, packet.timestamp))
        assert not any(open_ones.values()), "something never ended"


def written(trace: Trace, folder: Path) -> Read:
    write_perfetto(trace, folder / "x.pftrace")
    assert [p.name for p in folder.glob("*tmp*")] == []
    return Read(folder / "x.pftrace")


def partly_overlapping(spans: list[tuple[str, int, int]]) -> int:
    """A sweep over one track: how often something begins in an open one and ends behind it."""
    found, open_ends = 0, []
    for _, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        open_ends = [one for one in open_ends if one > start]
        found += any(end > one for one in open_ends)
        open_ends.append(end)
    return found


def gpu(folder: Path, *kernels, stream: str = "Stream #13(Kernel)") -> Trace:
    work = [event(name, start, length, hlo_op=Ref(op)) for name, op, start, length in kernels]
    folder.mkdir(exist_ok=True)
    (folder / "h.xplane.pb").write_bytes(xspace(Plane("/device:GPU:3", (line(stream, *work),))))
    return open_run(folder / "h.xplane.pb")


def test_a17_partly_overlapping_events_of_a_stream_lie_on_tracks_of_their_own(tmp_path):
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
    read = written(open_run(tmp_path / "x.trace.json"), tmp_path)
    assert all(partly_overlapping(spans) == 0 for spans in read.slices.values())
    found = {
        name: (track, end - start) for track, s in read.slices.items() for name, start, end in s
    }
    assert {name: length for name, (_, length) in found.items()} == {"first": 6000, "second": 9000}
    assert [read.names[found[name][0]] for name in ("first", "second")] == [
        "Stream #7", "Stream #7 (overlapping, 2)",
    ]  # fmt: skip


def test_every_piece_of_work_is_there_with_its_stamps_and_op(tmp_path):
    trace = gpu(
        tmp_path / "run", ("k1", "dot.1", 100, 50), ("k2", "", 150, 7), ("k3", "add", 160, 0)
    )
    read = written(trace, tmp_path)
    (spans,) = read.slices.values()
    assert sorted(spans) == [("add", 160, 160), ("dot.1", 100, 150), ("k2", 150, 157)]
    (track,) = read.slices
    assert read.names[track] == "Stream #13(Kernel)"
    assert read.names[read.process[track]] == "rank 0: h device 3"
    assert read.shown["dot.1"] == {
        "recorded as": "k1", "step": -1, "self_ns": 50, "confidence": 0.0,
    }  # fmt: skip


def test_sums_equal_the_tables_where_work_nests_and_overlaps(tmp_path):
    kernels = [(f"k{at}", f"op.{at}", 100 + 7 * at, 5 + (at * 37) % 60) for at in range(200)]
    trace = gpu(tmp_path / "run", *kernels, stream="Stream #1")
    read = written(trace, tmp_path)
    spans = [span for some in read.slices.values() for span in some]
    assert len(spans) == len(trace.events) == 200
    assert sum(end - start for _, start, end in spans) == trace.events["duration_ns"].sum()
    assert all(partly_overlapping(some) == 0 for some in read.slices.values())
    starts = dict(zip(trace.events["op"], trace.events["start_ns"], strict=True))
    assert all(starts[name] == start for name, start, _ in spans)


def test_steps_have_a_track_and_say_why_they_are_left_out(tmp_path):
    from builders.sessions import two_hosts

    trace = open_run(two_hosts(tmp_path / "run"))
    read = written(trace, tmp_path)
    (steps,) = (uuid for uuid, name in read.names.items() if name == "measured, and left out")
    assert [name for name, *_ in read.slices[steps]] == [f"step {n}" for n in trace.steps["step"]]
    assert read.shown["step 0"] == {"used": 1, "left out because": ""}
    assert {read.names[read.process[t]].split(":")[0] for t in read.slices} == {
        "rank 0", "rank 1", "steps",
    }  # fmt: skip


def test_names_of_any_kind_stay_text(tmp_path):
    hostile = "<script>\u202e\N{CHERRY BLOSSOM}" + "x" * 10_000
    read = written(gpu(tmp_path / "run", (hostile, "", 1, 5)), tmp_path)
    assert [name for spans in read.slices.values() for name, *_ in spans] == [hostile]


def test_a_trace_without_work_is_written_without_slices(tmp_path):
    (tmp_path / "h.xplane.pb").write_bytes(xspace(Plane("/host:CPU", (line("t"),))))
    assert written(open_run(tmp_path / "h.xplane.pb"), tmp_path).slices == {}


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    trace = gpu(tmp_path / "run", ("k", "", 1, 5))
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(MoeprofError, match=r"expected the package perfetto.*moeprof\[perfetto\]"):
        write_perfetto(trace, tmp_path / "x.pftrace")


def test_a_folder_that_is_not_there_is_said_in_one_line_and_nothing_is_left(tmp_path):
    trace = gpu(tmp_path / "run", ("k", "", 1, 5))
    with pytest.raises(MoeprofError, match=r"x\.pftrace: cannot be written \(No such file"):
        write_perfetto(trace, tmp_path / "absent" / "x.pftrace")
