import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.questions.pipeline import pipeline, pipeline_stages
from moeprof.analyzers.stages.recorded import NONE, NOT_COUNTED, NOT_NAMED, chain_of
from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork

MS = 1_000_000


def work(schedule, rows, total_ms, *, stages=4, microbatches=8, iterations=(0,), chunks=1):
    """Stage intervals from rows (stage, kind, start ms, length ms), the same each iteration."""
    pieces = [
        {"iteration": i, "stage": stage, "kind": kind, "slot": n}
        | {"start_ns": int(start * MS), "duration_ns": int(length * MS)}
        for i in iterations
        for n, (stage, kind, start, length) in enumerate(rows)
    ]
    times = [
        {"iteration": i, "stage": s, "duration_ns": int(total_ms * MS), "memory_bytes": 1.0}
        for i in iterations
        for s in range(stages)
    ]
    return PipelineWork(
        "made",
        schedule,
        stages,
        microbatches,
        chunks,
        STAGE_WORK.frame(pieces),
        STAGE_TIME.frame(times),
    )


def gpipe_forward():
    """4 stages, 8 microbatches of 1 ms: stage s works from s to s + 8 ms of 11 ms."""
    rows = [(stage, "forward", stage + slot, 1) for stage in range(4) for slot in range(8)]
    return work("gpipe", rows, 11)


def test_a_forward_pipeline_waits_as_long_as_its_schedule_demands():
    analysis = pipeline_stages(gpipe_forward())
    assert (analysis.table["work_ns"] + analysis.table["idle_ns"]).unique() == 11 * MS
    assert analysis.table["idle_ns"].tolist() == [3 * MS] * 4
    assert analysis.table["bubble_share"].tolist() == pytest.approx([3 / 11] * 4)
    assert analysis.table["schedule_share"].tolist() == pytest.approx([3 / 11] * 4)
    headline = {m.metric: m.value for m in analysis.headline}
    assert headline["bubble_share"] == pytest.approx(0.2727, abs=0.0001)
    assert headline["beyond_schedule"] == pytest.approx(0.0)


def test_idle_is_divided_into_ramp_and_gaps():
    """Stage 1 begins 1 ms late, pauses 2 ms, ends 2 ms early."""
    rows = [(0, "forward", 0, 10), (1, "forward", 1, 3), (1, "backward", 6, 2)]
    table = pipeline_stages(work("1f1b", rows, 10, stages=2, microbatches=1)).table
    assert table[["ramp_ns", "gaps_ns", "idle_ns"]].to_numpy().tolist() == [
        [0, 0, 0],
        [3 * MS, 2 * MS, 5 * MS],
    ]
    assert table["backward_ns"].tolist() == [0, 2 * MS]


def test_work_that_overlaps_counts_once():
    rows = [(0, "backward", 0, 4), (0, "weight_gradient", 2, 4)]
    table = pipeline_stages(work("1f1b", rows, 8, stages=1, microbatches=1)).table
    assert table["work_ns"].tolist() == [6 * MS]


def test_gradients_of_weights_that_run_apart_show_another_schedule():
    rows = [(0, "forward", 0, 1), (0, "backward", 1, 1), (0, "weight_gradient", 2, 1)]
    analysis = pipeline_stages(work("1f1b", rows, 3, stages=1, microbatches=1))
    assert analysis.notes[0].startswith(
        "gradients of weights ran apart, so the schedule was not 1f"
    )
    assert analysis.table["in_flight"].tolist() == [1]


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        (Schedule("gpipe", 4, 8), 3 / 11),
        (Schedule("1f1b", 4, 8), 3 / 11),
        (Schedule("circular", 4, 8, chunks=2), 3 / 19),
        (Schedule("interleaved", 8, 16, chunks=2), 7 / 39),
        (Schedule("1f1b", 1, 5), 0.0),
    ],
)
def test_the_bubble_of_a_schedule_is_its_formula(schedule, bubble):
    assert schedule.bubble == pytest.approx(bubble)


def test_a_schedule_that_cannot_be_is_refused():
    with pytest.raises(SpecError, match=r"expected one of gpipe, 1f1b, .*, found 'zb'"):
        Schedule("zb", 4, 8)
    with pytest.raises(SpecError, match="stages must be at least 1, found 0"):
        Schedule("gpipe", 0, 8)
    with pytest.raises(SpecError, match="each stage has one chunk, found 2"):
        Schedule("1f1b", 4, 8, chunks=2)


def test_an_iteration_that_is_not_there_is_named():
    with pytest.raises(SpecError, match="made: expected an iteration from 0 to 0, found 9"):
        pipeline_stages(gpipe_forward(), iteration=9)


def pipelined(
    name="jit(s)/pipeline/ppermute", ticks=11, work_ns=MS, trip_count=11, runs=1, more=()
):
    """4 devices, each round 1 ms of layers and an instant shift to the next stage."""
    ops = (
        hlo("layers", "dot", computation="body", shape="f32[2]", size_bytes=8),
        hlo(
            "shift",
            "collective-permute",
            "layers",
            computation="body",
            op_name=name,
            source_target_pairs="{{0,1},{1,2},{2,3},{3,0}}",
        ),
        hlo("loop", "while", "", called="body cond", trip_count=trip_count),
    )
    events = [
        event
        for device in range(4)
        for tick in range(ticks * runs)
        for event in (
            kernel("layers", tick * MS, work_ns, device=device),
            kernel("shift", (tick + 1) * MS, 0, device=device),
        )
    ]
    return traced([*events, *more], ops, {0: (0, ticks * runs * MS)})


def test_rounds_of_a_loop_that_shifts_between_stages_show_the_pipeline():
    """8 microbatches in 11 rounds: a device computes in all of them, 3 times on nothing."""
    analysis = pipeline(pipelined())
    assert analysis.table["pieces"].tolist() == [8] * 4
    assert analysis.table["work_ns"].tolist() == [8 * MS] * 4
    assert analysis.table["bubble_share"].tolist() == pytest.approx([3 / 11] * 4)
    assert {m.metric: m.value for m in analysis.headline}["schedule_share"] == pytest.approx(3 / 11)
    assert "11 rounds of a loop that shifts over 4 devices" in analysis.notes[0]


def test_a_loop_that_runs_twice_in_a_step_fills_twice():
    analysis = pipeline(pipelined(trip_count=11, runs=2))
    assert analysis.table["work_ns"].tolist() == [16 * MS] * 4
    assert analysis.table["bubble_share"].tolist() == pytest.approx([6 / 22] * 4)


@pytest.mark.parametrize("trip_count", [-1, 12], ids=["unsaid", "not a whole number of runs"])
def test_rounds_of_a_loop_that_nothing_counts_are_not_invented(trip_count):
    analysis = pipeline(pipelined(trip_count=trip_count, runs=2))
    assert analysis.table.empty
    assert analysis.notes == (NOT_COUNTED,)


def test_runs_of_a_loop_that_was_recorded_are_counted():
    """2 runs of 11 rounds over 4 stages: 8 of each 11 are work."""
    runs = [
        kernel("loop", 11 * n * MS, 11 * MS, kind="op", device=d)
        for d in range(4)
        for n in range(2)
    ]
    analysis = pipeline(pipelined(trip_count=-1, runs=2, more=runs))
    assert analysis.table["bubble_share"].tolist() == pytest.approx([6 / 22] * 4)


def test_shifts_that_nothing_names_a_pipeline_are_not_taken_for_one():
    analysis = pipeline(pipelined(name="jit(s)/ring_attention/ppermute"))
    assert analysis.table.empty
    assert analysis.notes == (NOT_NAMED,)


def test_a_trace_without_transfers_has_no_pipeline():
    assert pipeline(traced([kernel("dot", 0, 5)], (hlo("dot", "dot"),))).notes == (NONE,)


@pytest.mark.parametrize(
    ("pairs", "is_backward", "order", "is_ring", "count"),
    [
        ("{{0,1},{1,2},{2,3}}", False, (0, 1, 2, 3), False, 1),
        ("{{1,0},{2,1},{3,2}}", True, (3, 2, 1, 0), False, 1),
        ("{{0,1},{1,2},{2,0}}", False, (0, 1, 2), True, 1),
        ("{{0,2},{1,0},{2,1}}", True, (2, 1, 0), True, 1),
        ("{{0,4},{4,0},{1,5},{5,1}}", True, (4, 0), True, 2),
        ("{{0,2},{1,3}}", False, (0, 2), False, 2),
        ("{{0,1},{1,2},{5,6}}", False, (), False, 0),
        ("", False, (), True, 0),
    ],
)
def test_pairs_are_followed_from_stage_to_stage(pairs, is_backward, order, is_ring, count):
    assert chain_of(pairs, is_backward) == (order, is_ring, count)
