"""Records and routing of another run beside a profile: left out, and what was compared is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.sessions import NOON_NS, write
from builders.xspace import Plane, event, host, line, metadata, thunk, xspace
from pyarrow import parquet

from moeprof.analyzers import analyze
from moeprof.analyzers.laws import laws_of
from moeprof.ingest import open_run
from moeprof.reports.run.document import build
from moeprof.tables.routing import RECORDING_KEY
from moeprof.tables.trace import MeshAxis

NOON = datetime.fromtimestamp(NOON_NS / 1e9, UTC)
SECOND_NS = 10**9
PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))
FILE = "plugins/profile/night/c7-p0.xplane.pb"
OWN, OTHER = "5ce0a1", "0d17b2"


def profile(steps: tuple[int, ...] = (40, 41, 42), *, is_dated: bool = True) -> bytes:
    """A CPU run of annotated steps, recorded from noon to 2 s later."""
    work = [thunk("add", 1000 * i + 110, 100, run_id=i) for i in range(len(steps))]
    marks = [
        event("train", 1000 * i + 100, 400, _r=1, step_num=step) for i, step in enumerate(steps)
    ]
    planes = [metadata(p7=PROGRAM), host(line("pool", *work), line("python", *marks))]
    if is_dated:
        stamps = {"profile_start_time": NOON_NS, "profile_stop_time": NOON_NS + 2 * SECOND_NS}
        planes.append(Plane("Task Environment", stats=stamps))
    return xspace(*planes)


def record(
    run: Path,
    *,
    began_s: float = -30,
    ended_s: float | None = 9,
    file: str = FILE,
    recording: str = "",
    window: tuple[float, float] | None = None,
    has_dates: bool = True,
    expected: int = 1,
) -> None:
    """meta.json of one process, its times in seconds from noon."""
    held = {"file": file, "counted_by": "annotation train", "first_step": 40, "last_step": 42}
    if window is not None:
        opened, closed = (NOON_NS + round(at * SECOND_NS) for at in window)
        held |= {"started_epoch_ns": opened, "ended_epoch_ns": closed}
    own = {"host": "c7", "process_index": 0, "files": [file], "windows": [held]}
    dates = {
        "started": (NOON + timedelta(seconds=began_s)).isoformat(),
        "ended": None if ended_s is None else (NOON + timedelta(seconds=ended_s)).isoformat(),
    }
    own |= dates if has_dates else {}
    own |= {"recording": recording} if recording else {}
    meta = {"schema": "moeprof.run/1", "command": "python x.py", "processes": [own]}
    meta["expected_processes"] = expected
    write(run / "meta.json", json.dumps(meta).encode())


def routing(run: Path, counts: dict[int, list[int]], recording: str = "") -> None:
    """Tokens of the experts of two layers by step, each on a rank of its own."""
    rows = [
        {"step": s, "layer": n, "expert": e, "rank": e, "tokens": tokens}
        for s, experts in counts.items()
        for n in range(2)
        for e, tokens in enumerate(experts)
    ]
    table = pyarrow.Table.from_pandas(pd.DataFrame(rows))
    metadata = {RECORDING_KEY: recording.encode()} if recording else None
    (run / "routing").mkdir(exist_ok=True)
    parquet.write_table(table.replace_schema_metadata(metadata), run / "routing" / "p0.parquet")


EVEN = {step: [6, 2, 3, 5] for step in (40, 41, 42)}


def law(run: Path, name: str):
    found = {one.check: one for one in laws_of(open_run(run))}
    return found[name]


def run_of(folder: Path, **told) -> Path:
    write(folder / FILE, profile())
    record(folder, **told)
    return folder


def test_a_record_whose_time_holds_the_profile_is_used(tmp_path):
    found = law(run_of(tmp_path, window=(0.1, 1.9)), "run_record")
    assert (found.verdict, found.expected, found.found) == ("ok", 1, 1)
    assert found.detail == "1 of 1 profile(s) lie in the time of meta.json"
    assert open_run(tmp_path).meta.run_folder == str(tmp_path)


@pytest.mark.parametrize("told", [{"ended_s": None}, {"began_s": 2}, {"ended_s": -2}])
def test_a_run_that_goes_on_and_a_clock_that_was_set_are_no_contradiction(tmp_path, told):
    assert law(run_of(tmp_path, **told), "run_record").verdict == "ok"


@pytest.mark.parametrize(
    ("told", "compared"),
    [
        (
            {"began_s": -86430, "ended_s": -86391},
            "the profile records 2026-11-28 12:00:00.0 to 12:00:02.0 UTC, the run of the record "
            "was 2026-11-27 11:59:30.0 to 12:00:09.0 UTC",
        ),
        ({"began_s": 8, "ended_s": None}, "was from 2026-11-28 12:00:08.0 UTC on"),
        (
            {"window": (3.5, 4.0)},
            "the record of its window is of 2026-11-28 12:00:03.5 to 12:00:04.0 UTC",
        ),
        ({"window": (-4.0, -1.5)}, "the record of its window is of 2026-11-28 11:59:56.0"),
        (
            {"file": "plugins/profile/day/c7-p0.xplane.pb", "began_s": 60, "ended_s": 90},
            "the record names day/c7-p0, not night/c7-p0, and the profile records 2026-11-28 12",
        ),
        (
            {"file": "plugins/profile/day/c8-p0.xplane.pb", "has_dates": False},
            "the record names day/c8-p0, not night/c7-p0, and states no dates to compare",
        ),
    ],
)
def test_a_record_of_another_time_or_file_is_left_out(tmp_path, told, compared):
    run_of(tmp_path, **told)
    routing(tmp_path, EVEN)
    trace = open_run(tmp_path)
    found = next(one for one in trace.trust if one.check == "run_record")
    assert (found.verdict, found.expected, found.found) == ("warn", 1, 0)
    assert found.detail.startswith("meta.json is of another run: ")
    assert compared in found.detail
    assert not found.withholds_any
    assert (trace.meta.run_folder, trace.meta.of_other_runs) == ("", ("meta.json",))
    assert trace.routing.empty
    assert len(trace.steps) == 3  # by the profile alone
    assert "record" not in build(trace, analyze(trace, ("step_time",)))["run"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"fsdp": 2, "expert": 4}, (MeshAxis("fsdp", 2), MeshAxis("expert", 4))),
        (None, ()),
        ({"fsdp": "many"}, ()),
        ({"fsdp": 0}, ()),
        ([2, 4], ()),
    ],
)
def test_the_mesh_of_the_run_is_read_in_its_order(tmp_path, written, read):
    run_of(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    write(tmp_path / "meta.json", json.dumps({**meta, "mesh": written}).encode())
    assert open_run(tmp_path).meta.mesh == read


def test_another_name_in_the_right_time_is_a_file_that_was_renamed(tmp_path):
    run_of(tmp_path, file="plugins/profile/night/worker-p0.xplane.pb")
    assert law(tmp_path, "run_record").verdict == "ok"


@pytest.mark.parametrize("is_dated", [True, False])
def test_without_dates_to_compare_nothing_is_checked(tmp_path, is_dated):
    write(tmp_path / FILE, profile(is_dated=is_dated))
    record(tmp_path, has_dates=not is_dated)
    found = law(tmp_path, "run_record")
    assert found.verdict == "unchecked"
    assert open_run(tmp_path).meta.run_folder == str(tmp_path)


def test_no_record_is_unchecked(tmp_path):
    write(tmp_path / FILE, profile())
    routing(tmp_path, EVEN, OWN)
    assert law(tmp_path, "run_record").verdict == "unchecked"
    assert "there is no meta.json" in law(tmp_path, "routing_record").detail


def host_record(run: Path, **told) -> None:
    facts = {"schema": "moeprof.host/1", "cores": 96, **told}
    write(run / "host" / "p0.json", json.dumps(facts).encode())


@pytest.mark.parametrize(
    ("recording", "told", "why"),
    [
        (OWN, {"recording": OTHER}, f"is of recording {OTHER}, the record of recording {OWN}"),
        (OWN, {}, f"is of a recording without an id, the record of recording {OWN}"),
        (
            "",
            {"recording": OTHER},
            f"is of recording {OTHER}, the record of a recording without an id",
        ),
        ("", {"host": "c9"}, "is of host c9, the record of c7"),
        (
            "",
            {"gc_pauses": [{"start_epoch_ns": NOON_NS - 90 * SECOND_NS, "duration_ns": 5}]},
            "is of 2026-11-28 11:58:30.0 to 11:58:30.0 UTC, the run of the record was",
        ),
        ("", {"compile_events": [{"end_epoch_ns": NOON_NS + 15 * SECOND_NS}]}, "is of 2026-11-28"),
    ],
)
def test_facts_of_another_host_or_time_are_left_out(tmp_path, recording, told, why):
    run_of(tmp_path, recording=recording)
    host_record(tmp_path, **told)
    found = law(tmp_path, "run_record")
    assert found.verdict == "warn"
    assert f"left out: host/p0.json {why}" in found.detail
    assert open_run(tmp_path).host_facts.empty


def test_facts_of_the_run_are_used(tmp_path):
    run_of(tmp_path, recording=OWN)
    host_record(tmp_path, recording=OWN, host="c7")
    assert law(tmp_path, "run_record").verdict == "ok"
    assert open_run(tmp_path).host_facts["key"].tolist() == ["cores"]


def test_samples_of_another_run_tell_nothing_of_the_gpus(tmp_path):
    run_of(tmp_path)
    state = {"epoch_ns": NOON_NS - 900 * SECOND_NS, "devices": {"0": {"others": 2}}}
    samples = {"windows": [{"states": [state]}]}
    write(tmp_path / "memory" / "p0.json", json.dumps(samples).encode())
    assert (
        "left out: memory/p0.json is of 2026-11-28 11:45:00.0" in law(tmp_path, "run_record").detail
    )
    write(tmp_path / "memory" / "p0.json", json.dumps({"windows": []}).encode())
    assert "memory/p0.json has 0 windows, the record 1" in law(tmp_path, "run_record").detail


def test_routing_with_the_id_of_a_process_is_of_the_run(tmp_path):
    run_of(tmp_path, recording=OWN)
    routing(tmp_path, EVEN, OWN)
    assert law(tmp_path, "routing_record").verdict == "ok"
    found = analyze(open_run(tmp_path), ("expert_load",))["expert_load"].headline
    worst = next(m.value for m in found if m.metric == "worst_expert_imbalance")
    assert worst == pytest.approx(6 / 4)


@pytest.mark.parametrize(
    ("record_id", "table_id", "why"),
    [
        (OWN, OTHER, f"p0.parquet is of recording {OTHER}, meta.json of recording {OWN}: left"),
        (OWN, "", f"p0.parquet is of a recording without an id, meta.json of recording {OWN}: "),
        ("", OTHER, f"is of recording {OTHER}, meta.json of a recording without an id: left out"),
    ],
)
def test_routing_of_another_recording_is_left_out(tmp_path, record_id, table_id, why):
    run_of(tmp_path, recording=record_id)
    routing(tmp_path, EVEN, table_id)
    found = law(tmp_path, "routing_record")
    assert (found.verdict, found.withholds_any) == ("warn", False)
    assert why in found.detail
    trace = open_run(tmp_path)
    load = analyze(trace, ("expert_load",))["expert_load"]
    assert all(metric.value is None for metric in load.headline)
    assert load.notes[0].startswith("none that can be used: what was recorded")
    tokens = law(tmp_path, "tokens")
    assert (tokens.verdict, tokens.detail) == ("unchecked", "the recorded routing is left out")


def test_routing_of_a_process_that_was_killed_is_not_checked(tmp_path):
    run_of(tmp_path, recording=OWN, expected=3)
    routing(tmp_path, EVEN, OWN)
    folder = tmp_path / "routing"
    (folder / "p0.parquet").rename(folder / "p2.parquet")
    assert law(tmp_path, "routing_record").verdict == "ok"
    routing(tmp_path, EVEN, OTHER)
    (folder / "p0.parquet").rename(folder / "p2.parquet")
    assert law(tmp_path, "routing_record").verdict == "unchecked"
    assert len(open_run(tmp_path).routing) == 24
    (folder / "p2.parquet").rename(folder / "p3.parquet")
    assert law(tmp_path, "routing_record").verdict == "warn"


def test_routing_without_an_id_is_not_checked_and_used(tmp_path):
    run_of(tmp_path)
    routing(tmp_path, EVEN)
    assert law(tmp_path, "routing_record").verdict == "unchecked"
    assert len(open_run(tmp_path).routing) == 24


@pytest.mark.parametrize("recording", ["", OWN])
def test_routing_of_other_steps_is_told_and_used_only_with_an_id(tmp_path, recording):
    run_of(tmp_path, recording=recording)
    routing(tmp_path, {7: [9, 3, 0, 4], 8: [4, 4, 4, 4], 9: [4, 4, 4, 4]}, recording)
    found = law(tmp_path, "routing_record")
    assert found.verdict == "warn"
    assert found.detail.startswith(
        "no routing of the recorded steps: it is of step(s) 7 to 9, they are 40 to 42"
    )
    assert open_run(tmp_path).routing.empty == (not recording)


def test_a_step_of_zeros_was_not_counted(tmp_path):
    run_of(tmp_path)
    routing(tmp_path, EVEN | {41: [0, 0, 0, 0]})
    found = law(tmp_path, "routing_record")
    assert found.verdict == "warn"
    assert found.detail == (
        "routing: zeros alone in a layer of step(s) 41, so nothing was counted there: left out"
    )
    assert open_run(tmp_path).routing["step"].unique().tolist() == [40, 42]


def test_zeros_alone_are_no_dead_experts(tmp_path):
    run_of(tmp_path)
    routing(tmp_path, {step: [0, 0, 0] for step in EVEN})
    found = law(tmp_path, "routing_record")
    assert found.detail == (
        "routing: zeros alone in layer(s) 0 to 1 of every step, so nothing was counted there: "
        "left out"
    )
    load = analyze(open_run(tmp_path), ("expert_load",))["expert_load"]
    assert all(metric.value is None for metric in load.headline)


def test_one_expert_without_a_token_in_any_step_is_dead(tmp_path):
    run_of(tmp_path)
    routing(tmp_path, {step: [7, 0, 9] for step in EVEN})
    assert law(tmp_path, "routing_record").verdict == "unchecked"
    found = analyze(open_run(tmp_path), ("expert_load",))["expert_load"].headline
    assert next(m.value for m in found if m.metric == "dead_experts") == 2


def test_a_dense_layer_of_zeros_is_no_layer_of_dead_experts(tmp_path):
    run_of(tmp_path)
    routing(tmp_path, EVEN)
    rows = parquet.read_table(tmp_path / "routing" / "p0.parquet").to_pandas()
    dense = rows[rows["layer"].eq(0)].assign(layer=5, tokens=0)
    pd.concat([rows, dense]).to_parquet(tmp_path / "routing" / "p0.parquet")
    assert law(tmp_path, "routing_record").detail.startswith(
        "routing: zeros alone in layer(s) 5 of"
    )
    load = analyze(open_run(tmp_path), ("expert_load",))["expert_load"]
    assert load.table["layer"].tolist() == [0, 1]
    assert next(m.value for m in load.headline if m.metric == "dead_experts") == 0


def test_rows_of_zeros_are_no_empty_buffer(tmp_path):
    run_of(tmp_path)
    (tmp_path / "routing").mkdir()
    rows = [
        {"step": s, "layer": 3, "group": 0, "rank": r, "rows": 0 if s == 42 else 8}
        for s in (40, 41, 42)
        for r in (0, 1)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "routing" / "received-p0.parquet")
    assert law(tmp_path, "routing_record").detail.startswith(
        "rows received: zeros alone in a layer of step(s) 42"
    )
    assert open_run(tmp_path).received["step"].unique().tolist() == [40, 41]
