"""Captures that lack work, and whose work is whose: the right values of the made inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace


@pytest.fixture
def case(data: Path) -> Callable[[str], Trace]:
    return lambda name: open_run(data / "cases" / f"{name}.xplane.pb.gz")


def law(trace: Trace, name: str) -> Law:
    return next(law for law in trace.trust if law.check == name)


def op_time(trace: Trace) -> object:
    return next(m.value for m in breakdown(trace).headline if m.metric == "op_time")


@pytest.mark.parametrize(
    ("name", "verdict", "found", "steps", "told"),
    [
        ("complete", "ok", 288, 6, "288 launches, each with its work"),
        ("most_lost", "fail", 180, 6, "108 of GPU 1's 144 launches have no kernel (75.0 %; 37.5 %"),
        ("half_recorded", "warn", 216, 3, "72 of GPU 1's 144 launches have no kernel (50.0 %"),
        ("one_silent", "fail", 144, 6, "144 of GPU 1's 144 launches have no kernel"),
    ],
)
def test_launches_without_kernels(case, name, verdict, found, steps, told):
    trace = case(f"lost_kernels/{name}")
    launches = law(trace, "launches")
    assert (launches.verdict, launches.expected, launches.found) == (verdict, 288, found)
    assert told in launches.detail
    assert int(trace.steps["used"].sum()) == steps
    assert trace.steps["duration_ns"][trace.steps["used"]].eq(3_830_000).all()
    assert op_time(trace) == 3_600_000


@pytest.mark.parametrize(
    ("name", "found_ns", "others"),
    [("three_steps", 400_000_000, 29), ("four_steps", 90_000_000, 39)],
)
def test_a_last_kernel_that_never_ends(case, name, found_ns, others):
    trace = case(f"endless_last_kernel/{name}")
    last = law(trace, "last_kernels")
    assert (last.verdict, last.expected, last.found) == ("warn", 60_000, found_ns)
    assert f"in the other {others} executions of it" in last.detail
    assert trace.steps["duration_ns"][trace.steps["used"]].eq(19_860_000).all()
    assert op_time(trace) == 6_000_000
    idle = next(m.value for m in timeline(trace).headline if m.metric == "idle_share")
    assert idle == pytest.approx(1 - 6 / 19.86)


def test_fills_and_copies_of_amd(case):
    trace = case("amd_helpers/fills_and_copies")
    parts = breakdown(trace).table.groupby("component")["per_step_ns"].sum().to_dict()
    assert parts["grouped_gemm"] == 3_100_000
    assert parts["copies"] == 300_000 + 200_000
    assert parts["unattributed"] == 0
    drawn = timeline(trace).table
    assert drawn["compute_ns"].eq(6_000_000).all()  # the product's own fill is a memory set
    assert drawn["idle_ns"].eq(900_000).all()


def test_host_launches_of_amd_are_no_work(case):
    trace = case("amd_helpers/host_launches")
    assert (len(trace.events), int(trace.events["self_ns"].sum())) == (30, 6_000_000)
    assert trace.steps["duration_ns"].tolist() == [1_250_000] * 5
    assert op_time(trace) == 1_200_000


def test_five_of_eight_devices_without_a_record(case):
    trace = case("amd_helpers/three_of_eight")
    devices = law(trace, "devices")
    assert (devices.verdict, devices.expected, devices.found) == ("fail", 8, 3)
    assert "5 of them without a record (GPU 0, GPU 2, GPU 3, GPU 5, GPU 7)" in devices.detail
    assert (trace.meta.devices, trace.meta.devices_left_out) == (3, 5)
    assert op_time(trace) == 2_700_000


def test_a_capture_of_jax_0_8_on_rocm(opened):
    trace = opened("gfx950_te_attention.xplane.pb")
    assert int(trace.steps["used"].sum()) == 5
    ns = trace.events.groupby(trace.events["op"].astype("str"))["self_ns"].agg(["sum", "size"])
    assert ns.loc["te_fused_attn_backward_ffi.18"].tolist() == [2_330_620, 25]
    assert ns.loc["te_fused_attn_backward_ffi.12"].tolist() == [2_315_140, 25]
    assert ns.loc["te_fused_attn_forward_ffi.10"].tolist() == [1_069_529, 10]
    assert ns.loc["te_fused_attn_forward_ffi.15"].tolist() == [1_026_290, 10]
    assert ns.loc["custom-call.1"].tolist() == [584_605, 5]
    busy = next(m.value for m in breakdown(trace).headline if m.metric == "busy_time")
    assert busy == pytest.approx(12_133_127 / 5, rel=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "h100x2_moe_ragged.xplane.pb",
        "maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz",
        "maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz",
        "gfx950_te_attention.xplane.pb",
        "mi300x_jax_conv3d.xplane.pb",
    ],
)
def test_sound_captures_lack_nothing(opened, name):
    laws = {law.check: law.verdict for law in opened(name).trust}
    asked = ("launches", "devices", "last_kernels", "stream_time")
    assert {laws[check] for check in asked} == {"ok"}
