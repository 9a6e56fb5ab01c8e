"""XProf, TensorBoard's profiler, opens our run folders; its figures beside ours.

What it gets from the same events equals ours to the ns or byte. Where it means something else by
a name, the test says what; docs/xprof.md says it to users.
"""

import gzip
import importlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprof.analyzers.heap.places import heaps_of
from moeprof.analyzers.questions.roofline import roofline
from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

DATA = Path(__file__).parents[1] / "data"
GRAPHS = "sparse-gmm-deepep-graphs"
GPU = ["dense-cf1.25", "sparse-gmm", GRAPHS]  # the others of tests/data/gpu have nothing else
CPU = "deepseek3_tiny_ep8_cf125"
MIB = 2**20
STEP = "jit_train_step"
"""The program that trains, in all captures."""


@dataclass(frozen=True)
class Capture:
    """A captured run, its profile unpacked in a copy: XProf writes beside what it reads."""

    folder: Path

    @cached_property
    def profiles(self) -> list[str]:
        return sorted(map(str, self.folder.rglob("*.xplane.pb")))

    @cached_property
    def trace(self) -> Trace:
        return open_run(self.folder)

    def tool(self, name: str, **options: str) -> Any:
        """What XProf's page of that name is drawn from."""
        # imported here: xprof and its protobuf are no part of what else this process tests
        convert = importlib.import_module("xprof.convert.raw_to_tool_data")
        data, kind = convert.xspace_to_tool_data(self.profiles, name, options)
        assert data, f"{name} gave nothing"
        assert kind == "application/json"
        return json.loads(data)

    def table(self, name: str) -> pd.DataFrame:
        """The rows of a page that is one table, or the first of several."""
        found = self.tool(name)
        return _frame(found[0] if isinstance(found, list) else found)

    def tools(self) -> list[str]:
        convert = importlib.import_module("xprof.convert.raw_to_tool_data")
        names: list[str] = convert.xspace_to_tool_names(self.profiles)
        return names

    def memory(self, space: int = 0) -> Any:
        """The memory viewer's page of the step; the list of tools lays its program out."""
        self.tools()
        (program,) = self.folder.rglob(f"{STEP}(*).hlo_proto.pb")
        name = program.name.removesuffix(".hlo_proto.pb")
        return self.tool("memory_viewer", module_name=name, memory_space=str(space))

    @property
    def module(self) -> int:
        modules = self.trace.modules
        return int(modules.loc[modules["name"].eq(STEP), "module"].item())


def _frame(table: dict[str, Any]) -> pd.DataFrame:
    rows = [[(cell or {}).get("v") for cell in row["c"]] for row in table["rows"]]
    return pd.DataFrame(rows, columns=[column["id"] for column in table["cols"]])


def _unpacked(folder: Path) -> Capture:
    for file in folder.rglob("*.xplane.pb.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    return Capture(folder)


@pytest.fixture(scope="module")
def captures(tmp_path_factory) -> Callable[[str], Capture]:
    """`captures(name)`: a capture on two GPUs, or MaxText's on eight virtual CPU devices."""
    made: dict[str, Capture] = {}

    def capture(name: str) -> Capture:
        if name not in made:
            folder = tmp_path_factory.mktemp("xprof") / name
            if name in GPU:
                shutil.copytree(DATA / "gpu" / name, folder)
            else:
                session = folder / "plugins" / "profile" / "run"
                session.mkdir(parents=True)
                shutil.copy(DATA / "maxtext" / f"{name}.xplane.pb.gz", session)
            made[name] = _unpacked(folder)
        return made[name]

    return capture


@pytest.fixture(params=GPU)
def gpu(request, captures) -> Capture:
    return captures(request.param)


def ns(of_us: Sequence[float] | pd.Series) -> int:
    """A sum of times in µs with three digits behind the point, in whole ns."""
    return sum(round(each * 1000) for each in of_us)


def timed(trace: Trace) -> pd.DataFrame:
    events = trace.events
    return events.assign(end_ns=events["start_ns"] + events["duration_ns"])


# --- what is there ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sparse-gmm", CPU])
def test_the_pages_of_a_run_folder_have_data(captures, name):
    capture = captures(name)
    offered = capture.tools()
    assert {"overview_page", "memory_viewer", "trace_viewer@", "op_profile", "hlo_stats"} <= set(
        offered
    )
    assert any(table.get("rows") for table in capture.tool("overview_page"))
    assert len(capture.tool("trace_viewer")["traceEvents"]) > len(capture.trace.events)
    assert capture.memory()["peakHeapMib"] > 0
    device = capture.tool("op_profile")["deviceType"]
    assert device == ("CPU_ONLY" if name == CPU else "GPU")


def test_what_xprof_leaves_in_the_folder_does_not_change_our_reading(tmp_path):
    shutil.copytree(DATA / "gpu" / GRAPHS, tmp_path / "run")
    capture = _unpacked(tmp_path / "run")
    before = open_run(capture.folder)
    for tool in ("overview_page", "trace_viewer@", "hlo_stats"):
        capture.tool(tool)
    capture.memory()
    left = {file.name for file in capture.folder.rglob("*") if file.name.endswith(".pb")}
    assert len(left) > 1  # caches of its own, beside the profile
    after = open_run(capture.folder)
    pd.testing.assert_frame_equal(after.events, before.events)
    assert after.meta.notes == before.meta.notes


# --- times: equal to the ns ------------------------------------------------------------------


def test_trace_viewer_has_our_events_on_every_stream(gpu):
    events = gpu.tool("trace_viewer")["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    thread = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    theirs: Counter[tuple[int, str]] = Counter()
    numbers: Counter[tuple[int, str]] = Counter()
    for event in (e for e in events if e.get("ph") == "X"):
        line = thread[event["pid"], event["tid"]]
        if "GPU" in process[event["pid"]] and line.startswith("Stream"):
            key = int(process[event["pid"]].rpartition(":")[2]), line
            theirs[key] += round(event["dur"] * 1000)
            numbers[key] += 1
    ours = gpu.trace.events.groupby(["device", "line"], observed=True)["duration_ns"]
    assert dict(theirs) == ours.sum().to_dict()
    assert dict(numbers) == ours.size().to_dict()


def test_kernel_stats_count_and_time_our_kernels(gpu):
    theirs = gpu.table("kernel_stats")
    events = gpu.trace.events
    kernels = events[events["kind"].eq("kernel")]
    assert ns(theirs["total_duration_us"]) == kernels["duration_ns"].sum()
    assert theirs["occurrences"].sum() == len(kernels)


def test_hlo_stats_time_each_op_as_we_do_where_the_profile_names_it(gpu):
    """Of what GPU graphs run the profile names no op: ours are found by order, theirs are none."""
    theirs = gpu.table("hlo_stats").groupby("hlo_op_name")["total_self_time"].agg(ns)
    events = gpu.trace.events
    recorded = events[events["evidence"].eq("recorded")]
    ours = recorded.groupby(recorded["op"].astype(str))["self_ns"].sum()
    assert theirs.to_dict() == ours.to_dict()


def test_in_graphs_half_of_the_time_has_no_op_in_hlo_stats(captures):
    capture = captures(GRAPHS)
    events = capture.trace.events
    theirs = ns(capture.table("hlo_stats")["total_self_time"])
    ours = events.loc[events["op"].ne(""), "self_ns"].sum()
    assert (theirs, ours) == (6_928_073, 13_969_476)


def test_their_idle_is_all_of_the_recorded_window_that_no_named_op_fills(gpu):
    """From a device's first event to its last, between steps too; copies of no program are idle."""
    stats = gpu.table("framework_op_stats")
    idle = ns(stats.query("operation == 'IDLE' and host_or_device == 'Device'")["total_time"])
    events = timed(gpu.trace)
    device = events.groupby("device")
    window = (device["end_ns"].max() - device["start_ns"].min()).sum()
    named = events.loc[events["evidence"].eq("recorded"), "duration_ns"].sum()
    assert idle == window - named


def test_they_count_no_work_of_a_kernel_library(captures):
    table = captures("sparse-gmm").table("hlo_stats")
    calls = table[table["hlo_op_name"].str.startswith("moeprof_grouped_gemm")]
    assert len(calls) == 21
    assert calls["total_self_time"].gt(0).all()
    assert calls["model_flop_rate"].eq(0).all()


def steps_of_overview(capture: Capture) -> list[int]:
    """Step times of the overview page in ns."""
    tables = [t for t in capture.tool("overview_page") if "cols" in t]
    frames = (_frame(t) for t in tables if any(c["id"] == "stepnum" for c in t["cols"]))
    return [round(ms * 1e6) for ms in next(frames)["stepTimeMs"]]


def test_their_step_on_gpus_runs_on_to_the_last_copy_before_the_next(gpu):
    """From a device's first op of the step; the device on which that takes longest."""
    events, steps = timed(gpu.trace), gpu.trace.steps
    starts = [*steps["start_ns"].tolist(), int(events["end_ns"].max()) + 1]
    lengths = []
    for begin, until in pairwise(starts):
        inside = events[events["start_ns"].between(begin, until, inclusive="left")]
        device = inside.groupby("device")
        lengths.append((device["end_ns"].max() - device["start_ns"].min()).max())
    assert steps_of_overview(gpu) == lengths
    assert all(theirs > ours for theirs, ours in zip(lengths, steps["duration_ns"], strict=True))


def test_their_step_on_cpus_is_the_time_that_python_took_to_launch_it(captures):
    capture = captures(CPU)
    markers, steps = capture.trace.markers, capture.trace.steps
    assert steps_of_overview(capture) == markers["duration_ns"].tolist() == [15_229_267, 35_570_669]
    assert steps["duration_ns"].tolist() == [1_179_949_423, 962_803_690]


def test_on_cpus_the_pages_about_ops_are_empty(captures):
    assert captures(CPU).table("hlo_stats").empty
    assert captures(CPU).tool("op_profile")["byProgram"]["metrics"].get("rawFlops", 0) == 0


# --- memory: equal to the byte ---------------------------------------------------------------


def held(capture: Capture, *kinds: str) -> int:
    """Bytes of the step's buffers of a kind that lie outside its heap."""
    buffers = capture.trace.buffers
    mine = buffers["module"].eq(capture.module) & buffers["kind"].isin(kinds)
    return int(buffers.loc[mine & buffers["is_at_peak"], "size_bytes"].sum())


def in_bytes(of_mib: float) -> int:
    return round(of_mib * MIB)


@pytest.mark.parametrize("name", [*GPU, CPU])
def test_memory_viewer_has_our_peak_at_our_place(captures, name):
    capture = captures(name)
    viewer = capture.memory()
    buffers = capture.trace.buffers
    heap = heaps_of(buffers[buffers["module"].eq(capture.module) & buffers["color"].eq(0)])[0]
    always = held(capture, "parameter", "output", "constant")
    assert in_bytes(viewer["peakHeapMib"]) == always + heap.live_bytes.max()
    assert viewer["peakHeapSizePosition"] == heap.peak
    assert in_bytes(viewer["entryComputationParametersMib"]) == held(capture, "parameter")


@pytest.mark.parametrize("name", [*GPU, CPU])
def test_memory_viewer_allocates_what_we_say_in_the_space_it_shows(captures, name):
    """It shows one memory space. Buffers that collectives share between devices are in another."""
    capture = captures(name)
    modules = capture.trace.modules
    said = modules[modules["module"].eq(capture.module)].iloc[0]
    ours = said["argument_bytes"] + said["output_bytes"] - said["alias_bytes"] + said["temp_bytes"]
    theirs = in_bytes(capture.memory()["totalBufferAllocationMib"])
    shared = 18_874_368 if name == "sparse-gmm" else 0
    assert theirs + shared == ours + said["constant_bytes"]
    if shared:
        assert in_bytes(capture.memory(space=1)["totalBufferAllocationMib"]) == shared


def test_the_figures_that_the_document_shows(captures):
    """docs/xprof.md, its table of what has the same name and means something else."""
    capture = captures("sparse-gmm")
    shown = (DATA.parents[1] / "docs" / "xprof.md").read_text(encoding="utf-8")
    theirs, ours = steps_of_overview(capture), capture.trace.steps["duration_ns"].tolist()
    mean = sum(theirs) / len(theirs)
    assert f"**{mean / 1e6:.1f} ms** ({theirs[0] / 1e6:.3f} and {theirs[1] / 1e6:.3f})" in shown
    assert f"**{sum(ours) / 2e6:.1f} ms** ({ours[0] / 1e6:.3f} and {ours[1] / 1e6:.3f})" in shown
    idle = capture.table("framework_op_stats").query(
        "operation == 'IDLE' and host_or_device == 'Device'"
    )
    idle_ms = idle["total_time"].item() / 1000
    share = 100 * idle["device_total_self_time_percent"].item()
    assert f"idle **{idle_ms:.1f} ms**, {share:.0f} % of" in shown
    assert f"**{capture.memory()['totalBufferAllocationMib']:.1f} MiB**" in shown
    work = roofline(capture.trace).table
    flops = work.query("component == 'grouped_gemm' and op == ''")["flops"].item()
    assert f"{flops / 1e9:.1f} GFLOP a step and device" in shown
