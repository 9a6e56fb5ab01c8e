import numpy as np
import pandas as pd
import pytest

from moeprof.analyzers.drawings.stage_grid import stage_grid as of_trace
from moeprof.analyzers.questions.pipeline import pipeline_stages
from moeprof.analyzers.stages import grid as module
from moeprof.analyzers.stages.grid import givers, stage_grid
from moeprof.analyzers.stages.projected import projected
from moeprof.analyzers.stages.recorded import NONE
from moeprof.specs.schedule import REPEATED, SCHEDULES, V_SHAPED, Schedule
from moeprof.specs.schedule_order import KINDS
from moeprof.specs.schedule_play import StageWork, play, times_of
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork

MS = 1_000_000


def recorded(rows, total_ms=10, schedule="1f1b", stages=1, microbatches=2, chunks=1):
    """Rows (stage, kind, start ms, length ms)."""
    pieces = [
        {"iteration": 0, "stage": stage, "kind": kind, "slot": 0}
        | {"start_ns": start * MS, "duration_ns": length * MS}
        for stage, kind, start, length in rows
    ]
    times = [
        {"iteration": 0, "stage": s, "duration_ns": total_ms * MS, "memory_bytes": np.nan}
        for s in range(stages)
    ]
    frames = STAGE_WORK.frame(pieces), STAGE_TIME.frame(times)
    return PipelineWork("made", schedule, stages, microbatches, chunks, *frames)


def rows(found):
    columns = ["kind", "microbatch", "start_ns", "duration_ns"]
    return [
        (kind, number, start // MS, length // MS)
        for kind, number, start, length in found.table[columns].itertuples(index=False)
    ]


def test_times_without_work_lie_between_the_pieces():
    work = [(0, "forward", 1, 2), (0, "backward", 3, 1), (0, "forward", 6, 1)]
    found = stage_grid(recorded([*work, (0, "backward", 7, 1)]), 0)
    assert rows(found) == [
        ("ramp", -1, 0, 1),
        ("forward", 0, 1, 2),
        ("backward", 0, 3, 1),
        ("gap", -1, 4, 2),
        ("forward", 1, 6, 1),
        ("backward", 1, 7, 1),
        ("ramp", -1, 8, 2),
    ]


def test_a_gap_says_what_the_next_piece_needs():
    """Two stages of 1F1B, 1 ms forward and 2 ms backward: stage 0 waits for gradients."""
    found = stage_grid(projected(Schedule("1f1b", 2, 2), StageWork((3 * MS,), (1, 1, 1))), 0).table
    idle = found[found["pieces"] == 0]
    told = idle[["stage", "kind", "next_needs"]].itertuples(index=False, name=None)
    assert list(told) == [
        (0, "gap", "backward of microbatch 0 from stage 1"),
        (0, "gap", "backward of microbatch 1 from stage 1"),
        (1, "ramp", "forward of microbatch 0 from stage 0"),
        (1, "ramp", ""),
    ]
    assert not found.loc[found["pieces"] > 0, "next_needs"].any()


def test_work_that_turns_around_needs_no_other_stage():
    """zbv goes down and back up: chunk 1 of the last stage follows its own chunk 0."""
    found = givers(Schedule("zbv", 3, 6, 2))
    assert {key: stage for key, stage in found.items() if key[0] == "forward"} == {
        ("forward", 1, 0): 0, ("forward", 2, 0): 1, ("forward", 1, 1): 2, ("forward", 0, 1): 1,
    }  # fmt: skip
    assert {key: stage for key, stage in found.items() if key[0] == "backward"} == {
        ("backward", 0, 0): 1, ("backward", 1, 0): 2, ("backward", 2, 1): 1, ("backward", 1, 1): 0,
    }  # fmt: skip


def test_chunks_of_an_interleaved_schedule_go_round():
    found = givers(Schedule("interleaved", 2, 2, 2))
    assert (found["forward", 0, 1], found["backward", 1, 0]) == (1, 0)
    assert ("forward", 0, 0) not in found


def test_gpipe_goes_back_from_the_last_microbatch():
    work = [
        (0, "forward", 0, 1),
        (0, "forward", 1, 1),
        (0, "backward", 2, 1),
        (0, "backward", 3, 1),
    ]
    found = stage_grid(recorded(work, 4, "gpipe"), 0)
    assert [number for _, number, *_ in rows(found)] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    "work",
    [
        [(0, "forward", 0, 1)] * 3,  # more than the schedule has
        [(0, "forward", 0, 1), (0, "weight_gradient", 1, 1)],  # a kind that it has not
    ],
)
def test_what_does_not_follow_the_schedule_has_no_microbatch(work):
    found = stage_grid(recorded(work, microbatches=1), 0).table
    assert set(found["microbatch"]) == {-1}


def test_a_schedule_that_cannot_be_numbers_nothing():
    work = [(0, "forward", 0, 1)] * 3
    assert set(
        stage_grid(recorded(work, 4, "interleaved", 2, 3, chunks=2), 0).table["microbatch"]
    ) == {-1}


@pytest.mark.parametrize("name", SCHEDULES)
def test_pieces_are_numbered_as_they_were_played(name):
    chunks = 2 if name in (*V_SHAPED, *REPEATED) else 1
    schedule, each = Schedule(name, 4, 8, chunks), StageWork((3 * MS,), (1, 1, 1))
    played = play(schedule, times_of(schedule, each))
    found = stage_grid(projected(schedule, each), 0).table
    pieces = found[found["pieces"] > 0]
    for column, truth in (("microbatch", played.microbatch), ("chunk", played.chunk)):
        assert pieces[column].to_numpy().reshape(4, -1).tolist() == truth.tolist()
    assert pieces["kind"].tolist() == np.array(KINDS)[played.kind].ravel().tolist()
    idle = found[found["pieces"] == 0].groupby(["stage", "kind"])["duration_ns"].sum()
    summed = pipeline_stages(projected(schedule, each)).table.set_index("stage")
    for kind, column in (("ramp", "ramp_ns"), ("gap", "gaps_ns")):
        mine = idle[idle.index.get_level_values("kind") == kind].droplevel("kind")
        pd.testing.assert_series_equal(
            mine.reindex(summed.index, fill_value=0), summed[column], check_names=False
        )


def test_many_pieces_are_drawn_together(monkeypatch):
    monkeypatch.setattr(module, "MOST_PIECES", 2)
    work = [(0, "forward", 0, 1), (0, "forward", 1, 1), (0, "backward", 4, 1), (0, "forward", 6, 2)]
    found = stage_grid(recorded(work), 0)
    assert rows(found) == [("forward", -1, 0, 2), ("gap", -1, 2, 2), ("several", -1, 4, 4),
                           ("ramp", -1, 8, 2)]  # fmt: skip
    assert found.table["pieces"].tolist() == [2, 0, 2, 0]
    assert found.notes == ("2 pieces in a row are drawn as one, gaps between them too",)


def test_filling_and_draining_are_not_mixed_with_the_rest(monkeypatch):
    """Stage 0 of 4 runs 3 forwards ahead, then 5 pairs, then 3 backwards: 16 pieces, by fours."""
    monkeypatch.setattr(module, "MOST_PIECES", 16)
    work = projected(Schedule("1f1b", 4, 8), StageWork((3 * MS,), (1, 1, 1)))
    found = stage_grid(work, 0).table
    first = found[(found["stage"] == 0) & (found["pieces"] > 0)]
    assert first[["kind", "pieces"]].to_numpy().tolist() == [
        ["forward", 4], ["several", 4], ["several", 4], ["backward", 4],
    ]  # fmt: skip
    last = found[(found["stage"] == 3) & (found["pieces"] > 0)]
    assert last["kind"].tolist() == ["several"] * 4
    assert found["pieces"].sum() == 64


def test_a_stage_without_work_is_idle_all_along():
    found = stage_grid(recorded([(0, "forward", 0, 10)], stages=2), 0)
    assert rows(found)[-1] == ("ramp", -1, 0, 10)


def test_a_trace_without_a_pipeline_says_so():
    from builders.work import kernel, traced

    found = of_trace(traced([kernel("x", 0, 10)]))
    assert (found.table.empty, found.notes) == (True, (NONE,))
