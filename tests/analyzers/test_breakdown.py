import pytest
from builders.hlo import computation, hlo_proto, op
from builders.trace import trace_of
from builders.xspace import Plane, event, line, thunk

from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.ops import ops

EXPERTS, BACKWARD = "jit(s)/jvp()/moe/experts/", "jit(s)/transpose(jvp())/"
PROGRAM = hlo_proto(
    computation(
        "main",
        op("x", "parameter", "f32[8,4]"),
        op(
            "up",
            "custom-call",
            "f32[8,4]",
            "x",
            target="moeprof_grouped_gemm",
            op_name=EXPERTS + "call",
        ),
        op("silu", "multiply", "f32[8,4]", "up", op_name=EXPERTS + "mul"),
        op("send", "all-to-all", "f32[8,4]", "silu", op_name=BACKWARD + "moe/dispatch/all_to_all"),
        op("psum", "all-reduce", "f32[8,4]", "send", op_name="jit(s)/grad_sync/psum"),
        op("cast", "convert", "bf16[8,4]", "psum"),
        op("adam", "subtract", "f32[8,4]", "psum", op_name="jit(s)/optimizer/sub"),
        op("lost", "rng", "f32[8,4]"),
        op("line", "add", "f32[8,4]", "lost", op_name="jit(s)/add"),
        op("copied", "copy", "f32[8,4]", "x"),
    ),
)
TIMES = {
    "up": 400,
    "silu": 50,
    "send": 200,
    "psum": 100,
    "cast": 20,
    "adam": 80,
    "line": 60,
    "lost": 30,
    "copied": 60,
}


def step(run_id: int, at: int, *, device: int = 0, factor: int = 1):
    found = []
    for name, length in TIMES.items():
        found.append(thunk(name, at, length * factor, run_id=run_id, device_ordinal=device))
        at += length * factor
    return found


@pytest.fixture
def trace(tmp_path):
    """Three steps on two devices; device 1 takes twice as long."""
    work = [
        e
        for i in range(3)
        for e in (*step(i, 5000 * i + 1), *step(i, 5000 * i + 1, device=1, factor=2))
    ]
    return trace_of(tmp_path, PROGRAM, *work)


def test_parts_are_means_over_devices_and_steps(trace):
    table = breakdown(trace).table.set_index(["component", "phase"])
    assert table["per_step_ns"].to_dict() == {
        ("grouped_gemm", "forward"): 600.0,  # (400 + 800) / 2
        ("dispatch", "backward"): 300.0,
        ("gradient_reduce", "other"): 180.0,  # psum 150 and the cast 30 that only it feeds
        ("optimizer", "other"): 120.0,
        ("other", "other"): 90.0,
        ("copies", "other"): 90.0,
        ("expert_elementwise", "forward"): 75.0,
        ("unattributed", "other"): 45.0,
    }
    assert table["share"].sum() == pytest.approx(1.0)
    assert table.loc[("grouped_gemm", "forward"), "share"] == pytest.approx(400 / 1000)
    assert table.loc[("grouped_gemm", "forward"), "calls"] == 1.0


def test_spreads_are_over_steps_and_over_devices(trace):
    row = breakdown(trace).table.set_index("component").loc["grouped_gemm"]
    assert row["step_spread_ns"] == 0.0
    assert row["device_spread_ns"] == pytest.approx(282.84, abs=0.01)  # of 400 and 800


def test_time_in_collectives_is_told(trace):
    table = breakdown(trace).table.set_index("component")
    assert table["collective_ns"]["dispatch"] == 300.0
    assert table["collective_ns"]["gradient_reduce"] == 150.0
    assert table["collective_ns"]["grouped_gemm"] == 0.0


def test_the_headline_has_the_unattributed_share(trace):
    headline = {m.metric: m.value for m in breakdown(trace).headline}
    assert headline["unattributed_share"] == pytest.approx(0.03)  # 30 of 1000
    assert headline["other_share"] == pytest.approx(0.06)
    assert headline["moe_share"] == pytest.approx(0.65)  # 400 + 50 + 200
    assert headline["op_time"] == headline["busy_time"] == 1500.0


def test_overlapping_ops_count_once_in_the_busy_time(tmp_path):
    work = [
        e
        for i in range(3)
        for e in (
            thunk("up", 900 * i + 1, 400, run_id=i),
            thunk("psum", 900 * i + 201, 400, run_id=i),
        )
    ]
    headline = {m.metric: m.value for m in breakdown(trace_of(tmp_path, PROGRAM, *work)).headline}
    assert (headline["op_time"], headline["busy_time"]) == (800.0, 600.0)


def test_work_without_an_instruction_is_unattributed(tmp_path):
    trace = trace_of(
        tmp_path, PROGRAM, *(thunk("gone.1", 10 * i + 1, 5, run_id=i) for i in range(3))
    )
    assert breakdown(trace).table["component"].tolist() == ["unattributed"]


def test_copies_of_a_gpu_without_an_op_are_copies_and_graphs_are_told(tmp_path):
    stream = line(
        "Stream #1(Compute)",
        event("MemcpyD2D", 10, 5),
        event("kernel", 20, 15, hlo_op="command_buffer_1", program_id=7),
    )
    trace = trace_of(tmp_path, PROGRAM, more=(Plane("/device:GPU:0", (stream,)),))
    found = breakdown(trace)
    assert found.table[["component", "share"]].to_numpy().tolist() == [
        ["unattributed", 0.75],
        ["copies", 0.25],
    ]
    assert any(
        note.startswith("75.0 % of device time is inside command buffers") for note in found.notes
    )


def test_without_a_step_the_whole_capture_is_divided_by_devices_alone(tmp_path):
    stream = line("Stream #1", event("k", 10, 30, hlo_op="up", program_id=7))
    found = breakdown(trace_of(tmp_path, PROGRAM, more=(Plane("/device:GPU:0", (stream,)),)))
    assert found.table["per_step_ns"].tolist() == [30.0, 0.0]
    assert "no whole step in the capture" in found.notes[0]
    assert {m.metric: m.value for m in found.headline}["basis"] == (
        "per device over the whole capture"
    )
    (time,) = (c for c in found.schema.columns if c.name == "per_step_ns")
    assert "of the whole capture" in time.meaning
    assert time.heading == "in capture"


def test_what_is_unattributed_is_told_even_where_it_is_nothing(tmp_path):
    work = [
        thunk("up", 100 * i + 1, 40, run_id=i, device_ordinal=d) for i in range(3) for d in (0, 1)
    ]
    table = breakdown(trace_of(tmp_path, PROGRAM, *work)).table.set_index("component")
    row = table.loc["unattributed"]
    assert row[["per_step_ns", "share", "calls", "collective_ns"]].tolist() == [0.0] * 4
    assert row[["step_spread_ns", "device_spread_ns"]].tolist() == [0.0, 0.0]


def test_waiting_on_the_cpu_is_told(tmp_path):
    work = [
        e
        for i in range(3)
        for e in (thunk("send", 100 * i + 1, 40, run_id=i), event("Rendezvous", 100 * i + 2, 10))
    ]
    notes = breakdown(trace_of(tmp_path, PROGRAM, *work)).notes
    assert any("25.0 % of op time is such waiting" in note for note in notes)


def test_operations_are_listed_by_cost_with_their_evidence(trace):
    table = ops(trace).table
    assert table["op"].tolist()[:3] == ["up", "send", "psum"]
    assert table["per_step_ns"].tolist()[:3] == [600.0, 300.0, 150.0]
    assert table["evidence"].tolist()[:2] == ["target", "scope"]
