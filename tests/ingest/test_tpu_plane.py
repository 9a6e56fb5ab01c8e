from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Event, Line, Plane, event, host, line, metadata, xspace

from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run
from moeprof.ingest.planes.record import MADE_UP_RUN
from moeprof.tables.trace import Trace

LOOP = "%while.1 = f32[8]{0} while(f32[8]{0} %p), condition=%cond, body=%body"
ADD = "%add.2 = f32[8]{0:T(256)} add(f32[8]{0} %x, f32[8]{0} %x)"
START = "%all-gather-start.3 = (f32[8], f32[16]) all-gather-start(f32[8] %while.1)"
DOT = "%dot.4 = f32[16]{0} dot(f32[8]{0} %while.1, f32[8]{0} %while.1)"
DONE = "%all-gather-done.3 = f32[16] all-gather-done((f32[8], f32[16]) %all-gather-start.3)"
PROGRAM = hlo_proto(
    computation("body", op("add.2", "add", "f32[8]")),
    computation(
        "main",
        op("while.1", "while", "f32[8]", called=("body",)),
        op("all-gather-start.3", "all-gather-start", "f32[16]", "while.1"),
        op("dot.4", "dot", "f32[16]", "while.1"),
        op("all-gather-done.3", "all-gather-done", "f32[16]", "all-gather-start.3"),
    ),
)
OF_PROGRAM = {name: {"program_id": 7} for name in (LOOP, ADD, START, DOT, DONE)}


def ops(at: int) -> tuple[Event, ...]:
    """A loop of 100 ns with 60 ns of body; 10 ns start, 70 ns product, 20 ns wait."""
    return (
        event(LOOP, at, 100),
        event(ADD, at + 20, 60),
        event(START, at + 100, 10),
        event(DOT, at + 110, 70),
        event(DONE, at + 180, 20),
    )


def core(number: int, *more: Line, late: int = 0, runs: int = 3, shared=OF_PROGRAM) -> Plane:
    """Executions of 200 ns each 1000 ns, each with one gather in flight for 100 ns."""
    starts = [1000 * run + 10 + late for run in range(runs)]
    return Plane(
        f"/device:TPU:{number}",
        (
            line("XLA Modules", *(event("jit_step(7)", at, 200) for at in starts)),
            line("XLA Ops", *(e for at in starts for e in ops(at))),
            line("Async XLA Ops", *(event(START, at + 100, 100) for at in starts)),
            line("Framework Ops", *(event("while", at, 100) for at in starts)),
            *more,
        ),
        stats={"device_type_string": "TPU v5p"},
        name_stats=shared,
    )


def opened(folder: Path, *planes: Plane) -> Trace:
    path = folder / "node0.xplane.pb"
    path.write_bytes(xspace(*planes))
    return open_run(path)


def test_ops_of_two_cores_are_work_of_two_devices(tmp_path):
    trace = opened(tmp_path, metadata(p7=PROGRAM), core(0), core(1, late=5))
    assert (trace.meta.platform, trace.meta.devices) == ("tpu", 2)
    assert trace.devices["model"].tolist() == ["TPU v5p", "TPU v5p"]
    assert trace.events.groupby("device").size().to_dict() == {0: 18, 1: 18}
    assert set(trace.events["line"]) == {"XLA Ops", "Async XLA Ops"}
    assert set(trace.events["kind"]) == {"op"}


def test_an_op_is_named_by_its_instruction_not_by_its_text(tmp_path):
    events = opened(tmp_path, metadata(p7=PROGRAM), core(0)).events
    assert set(events["op"]) == {
        *("while.1", "add.2", "all-gather-start.3", "dot.4", "all-gather-done.3")
    }
    assert (events["instruction"] >= 0).all()
    assert set(events["evidence"]) == {"recorded"}


def test_steps_are_executions_over_both_cores(tmp_path):
    trace = opened(tmp_path, metadata(p7=PROGRAM), core(0), core(1, late=5))
    assert trace.steps["duration_ns"].tolist() == [205, 205, 205]
    assert trace.executions["run_id"].tolist() == [MADE_UP_RUN + i for i in (0, 1, 2)] * 2
    assert trace.executions["busy_ns"].tolist() == [200] * 6


def test_run_ids_that_the_module_line_has_are_taken(tmp_path):
    runs = [event("jit_step(7)", 1000 * i + 10, 200, run_id=50 + i) for i in range(3)]
    plane = core(0)
    plane = Plane(plane.name, (line("XLA Modules", *runs), *plane.lines[1:]))
    assert opened(tmp_path, plane).executions["run_id"].tolist() == [50, 51, 52]


def test_a_loop_gives_up_the_time_of_its_body_by_the_program(tmp_path):
    events = opened(tmp_path, metadata(p7=PROGRAM), core(0)).events
    on_core = events[events["line"] == "XLA Ops"]
    assert on_core.groupby("op", observed=True)["self_ns"].max().to_dict() == {
        **{"while.1": 40, "add.2": 60, "all-gather-start.3": 10},
        **{"dot.4": 70, "all-gather-done.3": 20},
    }


def test_a_loop_gives_up_the_time_of_its_body_where_the_program_is_missing(tmp_path):
    events = opened(tmp_path, core(0)).events
    on_core = events[events["line"] == "XLA Ops"]
    assert on_core.groupby("op", observed=True)["self_ns"].max().to_dict() == {
        **{"while.1": 40, "add.2": 60, "all-gather-start.3": 10},
        **{"dot.4": 70, "all-gather-done.3": 20},
    }


@pytest.mark.parametrize("programs", [(), (metadata(p7=PROGRAM),)], ids=["missing", "there"])
def test_an_op_in_flight_gives_up_the_time_of_its_own_halves(tmp_path, programs):
    events = opened(tmp_path, *programs, core(0)).events
    in_flight = events[events["line"] == "Async XLA Ops"]
    assert in_flight["duration_ns"].tolist() == [100, 100, 100]
    assert in_flight["self_ns"].tolist() == [70, 70, 70]  # 100 - 10 start - 20 done
    assert set(in_flight["name"]) == {"all-gather-start.3 in flight"}


def test_a_gather_behind_a_product_is_hidden_as_long_as_that_lasts(tmp_path):
    trace = opened(tmp_path, metadata(p7=PROGRAM), core(0), core(1))
    table = timeline(trace).table
    # in flight [100, 200) of a step, the product [110, 180) hides 70 of it
    assert table["compute_ns"].tolist() == [130] * 6  # body 60, product 70; a loop is its body
    assert table["hidden_communication_ns"].tolist() == [70] * 6
    assert table["exposed_communication_ns"].tolist() == [30] * 6


def test_start_flight_and_done_are_one_call_of_the_collective(tmp_path):
    trace = opened(tmp_path, metadata(p7=PROGRAM), core(0), core(1, late=5))
    calls = calls_of(trace).table
    assert len(calls) == 6
    assert (calls["end_ns"] - calls["start_ns"]).tolist() == [100] * 6


def test_components_add_up_to_the_time_on_the_core_and_in_flight(tmp_path):
    table = breakdown(opened(tmp_path, metadata(p7=PROGRAM), core(0), core(1))).table
    assert table["per_step_ns"].sum() == 270  # 200 on the core, 70 in flight beside it
    assert table["collective_ns"].sum() == 100


def test_collectives_go_by_their_names_where_the_program_is_missing(tmp_path):
    trace = opened(tmp_path, core(0), core(1))
    table = timeline(trace).table
    assert table["hidden_communication_ns"].tolist() == [70] * 6
    assert table["exposed_communication_ns"].tolist() == [30] * 6
    assert {site.opcode for site in calls_of(trace).sites} == {"all-gather"}
    assert (
        calls_of(trace).table.pandas().groupby(["rank", "step"])["busy_ns"].sum().tolist()
        == [100] * 6
    )


def test_a_loop_of_a_missing_program_hides_no_exchange_in_it(tmp_path):
    exchange, loop = event("%all-to-all.5 = f32[8] all-to-all(f32[8] %x)", 30, 60), LOOP
    work = line("XLA Ops", event(loop, 10, 100), exchange, event("copy.6", 90, 10))
    plane = Plane("/device:TPU:0", (line("XLA Modules", event("jit_step(7)", 10, 100)), work))
    row = timeline(opened(tmp_path, plane)).table.iloc[0]
    assert (row["compute_ns"], row["exposed_communication_ns"], row["copy_ns"]) == (0, 60, 10)


def test_a_transfer_in_flight_computes_nothing(tmp_path):
    exchange = event("%all-to-all.5 = f32[8] all-to-all(f32[8] %x)", 20, 60)
    lines = (
        line("XLA Modules", event("jit_step(7)", 10, 100)),
        line("XLA Ops", exchange, event("%fusion.1 = f32[8] fusion(f32[8] %y)", 80, 30)),
        line("Async XLA Ops", event("%slice-start.2 = f32[4] async-start(f32[8] %z)", 10, 100)),
    )
    row = timeline(opened(tmp_path, Plane("/device:TPU:0", lines))).table.iloc[0]
    assert (row["compute_ns"], row["exposed_communication_ns"]) == (30, 60)
    assert row["copy_ns"] == 100


@pytest.mark.parametrize("stated", [2**64 - 5, None])
def test_ids_of_64_bits_join_ops_and_programs(tmp_path, stated):
    identity = 2**64 - 5  # the same bits as -5
    runs = line("XLA Modules", event(f"jit_step({identity})", 10, 200))
    shared = {} if stated is None else {n: {"program_id": stated % 2**64} for n in OF_PROGRAM}
    plane = Plane("/device:TPU:0", (runs, line("XLA Ops", *ops(10))), name_stats=shared)
    trace = opened(tmp_path, metadata(**{f"p{identity}": PROGRAM}), plane)
    assert set(trace.events["module"]) == {-5}
    assert set(trace.events["evidence"]) == {"recorded"}


def test_the_program_is_that_of_the_execution_where_no_stat_says_so(tmp_path):
    events = opened(tmp_path, metadata(p7=PROGRAM), core(0, shared={})).events
    assert set(events["module"]) == {7}


def test_lines_that_are_made_from_the_ops_are_counted_and_left_out(tmp_path):
    trace = opened(tmp_path, core(0, line("XLA TraceMe", event("a", 10, 20))))
    dropped = dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True))
    assert dropped == {"events derived from the ops of the TPU": 7}  # 3 modules, 3 ops, 1 call
    assert trace.meta.events == 18 + 7


def test_a_sparse_core_is_a_line_of_its_device(tmp_path):
    sparse = Plane(
        "/device:TPU:0 SparseCore 1",
        (
            line("Sparse Core Modules", event("jit_step(7)", 10, 200)),
            line("Sparse Core Ops", event("%gather.9 = f32[8] gather(...)", 20, 50)),
        ),
    )
    trace = opened(tmp_path, core(0), sparse)
    mine = trace.events[trace.events["line"] == "SparseCore 1: Sparse Core Ops"]
    assert mine[["device", "op", "module", "run_id", "self_ns"]].values.tolist() == [
        [0, "gather.9", 7, MADE_UP_RUN, 50]
    ]
    assert trace.devices["model"].tolist() == ["TPU v5p"]


def test_a_sparse_core_works_in_the_executions_of_its_device(tmp_path):
    sparse = Plane(
        "/device:TPU:0 SparseCore 1",
        (
            line("Sparse Core Modules", event("jit_step(7)", 1010, 200)),
            line("Sparse Core Ops", event("%gather.9 = f32[8] gather(...)", 1020, 50)),
        ),
    )
    trace = opened(tmp_path, sparse, core(0))
    assert trace.events[trace.events["op"] == "gather.9"]["step"].tolist() == [1]
    assert trace.steps["duration_ns"].tolist() == [200, 200, 200]


def test_steps_of_the_device_are_markers_where_the_host_has_none(tmp_path):
    steps = line("Steps", *(event(str(40 + i), 1000 * i + 5, 900) for i in range(3)))
    trace = opened(tmp_path, metadata(p7=PROGRAM), core(0, steps), core(1, steps))
    assert trace.markers["step"].tolist() == [40, 41, 42]
    assert trace.steps["step"].tolist() == [40, 41, 42]
    assert trace.meta.are_steps_numbered_by_script


def test_markers_of_the_host_count_before_steps_of_the_device(tmp_path):
    steps = line("Steps", event("40", 5, 900))
    marks = line("python", *(event("train", 1000 * i + 1, 3, step_num=i) for i in range(3)))
    assert opened(tmp_path, host(marks), core(0, steps)).markers["name"].tolist() == ["train"] * 3


def test_an_execution_that_the_capture_cut_is_no_step_to_measure(tmp_path):
    whole = core(0, runs=3)
    cut = [e for e in whole.lines[1].events if e.start_ns < 2100]
    lines = (whole.lines[0], line("XLA Ops", *cut), line("Async XLA Ops"))
    trace = opened(tmp_path, metadata(p7=PROGRAM), Plane(whole.name, lines, whole.stats))
    assert trace.steps["used"].tolist() == [True, True, False]
    assert "cut by the end of the capture" in trace.steps["reason"].iloc[-1]
