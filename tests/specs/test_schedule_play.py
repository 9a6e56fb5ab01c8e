import itertools
import math

import numpy as np
import pytest
from builders.schedules import equal_times, schedules
from hypothesis import given
from hypothesis import strategies as st

from moeprof.errors import SpecError
from moeprof.specs.schedule import V_SHAPED, Schedule, stage_at
from moeprof.specs.schedule_order import KINDS
from moeprof.specs.schedule_play import StageTimes, StageWork, play, times_of


def test_chunks_share_the_work_of_a_stage_and_kinds_share_a_chunk():
    """12 ns in 2 chunks of 6: forward 1, gradients of input 2 and of weights 3."""
    times = times_of(Schedule("zbv", 2, 4, 2), StageWork((12, 24), (1, 2, 3)))
    assert times.work_ns[:, 0].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert times.work_ns[:, 1].tolist() == [[2, 2], [4, 4], [6, 6]]


def test_embedding_and_head_are_where_the_model_begins_and_ends():
    work = StageWork((6,), embedding_ns=3, head_ns=9)
    forward = times_of(Schedule("interleaved", 3, 3, 2), work).work_ns[0]
    assert forward.tolist() == [[2, 1], [1, 1], [1, 4]]
    forward = times_of(Schedule("v-min", 3, 3, 2), work).work_ns[0]  # back up to the first stage
    assert forward.tolist() == [[2, 4], [1, 1], [1, 1]]


def test_parts_are_whole_and_add_up():
    assert times_of(Schedule("1f1b", 1, 1), StageWork((10,))).work_ns.ravel().tolist() == [3, 4, 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"total_ns": ()}, "expected positive times"),
        ({"total_ns": (5, 0)}, r"found \(5, 0\) ns"),
        ({"total_ns": (5,), "head_ns": -1}, "expected positive times"),
        ({"total_ns": (5,), "shares": (0, 0, 0)}, "expected shares of 0 or more"),
        ({"total_ns": (5,), "shares": (2, -1, 1)}, "expected shares of 0 or more"),
    ],
)
def test_what_is_no_time_is_refused(given, said):
    with pytest.raises(SpecError, match=said):
        StageWork(**given)


def test_every_stage_needs_its_time():
    with pytest.raises(SpecError, match="expected 4 times, one per stage, or one for all; found 3"):
        times_of(Schedule("1f1b", 4, 8), StageWork((1, 1, 1)))


def ends_of(played):
    """End in ns of each piece, by kind, stage, chunk, microbatch."""
    columns = (played.kind, played.chunk, played.microbatch, played.start_ns + played.duration_ns)
    return {
        (KINDS[kind], stage, chunk, microbatch): end
        for stage, rows in enumerate(zip(*columns, strict=True))
        for kind, chunk, microbatch, end in zip(*(row.tolist() for row in rows), strict=True)
    }


@st.composite
def uneven(draw):
    schedule = draw(schedules(most_stages=5))
    shape = (3, schedule.stages, schedule.chunks)
    count = math.prod(shape)
    values = draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    transfer, is_overlapped = draw(st.integers(0, 20)), draw(st.booleans())
    return schedule, StageTimes(np.array(values).reshape(shape), transfer, is_overlapped)


@given(uneven())
def test_every_piece_runs_once_after_what_it_needs_and_alone_on_its_stage(case):
    schedule, times = case
    played = play(schedule, times)
    ends = ends_of(played)
    p, m, v = schedule.stages, schedule.microbatches, schedule.chunks
    assert len(ends) == p * m * v * schedule.passes
    starts = {
        key: ends[key] - length
        for key, length in zip(ends, played.duration_ns.ravel().tolist(), strict=True)
    }
    way = [stage_at(schedule.name, p, depth) for depth in range(p * v)]
    for j in range(m):
        forward = [("forward", *place, j) for place in way]
        backward = [("backward", *place, j) for place in reversed(way)]
        for before, after in itertools.pairwise(forward + backward):
            is_sent = before[1] != after[1]
            assert starts[after] >= ends[before] + is_sent * times.transfer_ns
        if schedule.splits_backward:
            for place in way:
                weight = ("weight_gradient", *place, j)
                assert starts[weight] >= ends["backward", *place, j]
    assert (played.start_ns[:, 1:] >= (played.start_ns + played.duration_ns)[:, :-1]).all()


@given(schedules(), st.integers(1, 9))
def test_equal_stages_have_the_bubble_of_the_closed_form(schedule, length):
    played = play(schedule, equal_times(schedule, length, length, length))
    if schedule.microbatches >= schedule.settled_microbatches:
        assert played.bubbles() == pytest.approx(schedule.bubble)
    elif schedule.name != "v-min":  # one microbatch does not wait for places that others take
        assert played.bubbles().min() >= schedule.bubble - 1e-9


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        (Schedule("1f1b", 16, 16), 15 / 31),  # 48.39 %
        (Schedule("interleaved", 16, 16, 3), 15 / 63),  # 23.81 %
        (Schedule("interleaved", 16, 16, 6), 15 / 111),  # 13.51 %
        (Schedule("zb-h1", 4, 8), 3 / 27),
        (Schedule("zb-h2", 4, 8), 3 / 27),
        (Schedule("zbv", 4, 8, 2), 3 / 51),
        (Schedule("zbv", 8, 32, 2), 7 / 199),  # 3.52 %, stated with a run of Primus
        (Schedule("v-half", 8, 16, 2), 24 / 120),
        (Schedule("v-min", 8, 16, 2), 27 / 123),
        (Schedule("v-min", 6, 16, 2), 21 / 117),
    ],
    ids=str,
)
def test_bubbles(schedule, bubble):
    assert schedule.bubble == pytest.approx(bubble)
    assert play(schedule, equal_times(schedule, 7, 7, 7)).bubbles() == pytest.approx(bubble)


@pytest.mark.parametrize("name", ["zb-h2", "zbv"])
@pytest.mark.parametrize("stages", [1, 2, 5, 8])
def test_stages_of_zero_bubble_schedules_do_not_pause(name, stages):
    schedule = Schedule(name, stages, 2 * stages, 2 if name in V_SHAPED else 1)
    played = play(schedule, equal_times(schedule, 10, 10, 10))
    assert played.longest_stage_ns == 10 * schedule.rounds


@given(st.integers(1, 8), st.integers(0, 9), *(st.integers(1, 9) for _ in range(3)))
def test_idle_times_with_unequal_passes_are_those_of_the_paper(stages, more, f, b, w):
    """Qi et al. 2023, table 2: (p − 1) · (F + B − W), and F + B − 2 · W of H2.

    And no less than the last stage waits for at the begin, or where W is too long to fill.
    """
    times = {"zb-h1": max(f, b, f + b - w), "zb-h2": max(f, b - f, f + b - 2 * w)}
    for name, each in times.items():
        schedule = Schedule(name, stages, 2 * stages - 1 + more)
        played = play(schedule, equal_times(schedule, f, b, w))
        work = schedule.microbatches * (f + b + w)
        assert played.iteration_ns - work == (stages - 1) * each


def test_a_heavy_stage_sets_the_pace():
    """2 stages, 2 microbatches, forward and backward; the second stage takes 3 ns for each.

    Stage 0: F 0–1, F 1–2, B 7–8, B 13–14. Stage 1: F 1–4, B 4–7, F 7–10, B 10–13.
    """
    times = StageTimes(np.array([[[1], [3]], [[1], [3]], [[0], [0]]]))
    played = play(Schedule("1f1b", 2, 2), times)
    assert played.start_ns.tolist() == [[0, 1, 7, 13], [1, 4, 7, 10]]
    assert (played.iteration_ns, played.longest_stage_ns) == (14, 14)
    assert played.bubbles() == pytest.approx([10 / 14, 2 / 14])


@pytest.mark.parametrize(("is_overlapped", "second"), [(True, 2), (False, 7)])
def test_a_transfer_delays_the_receiver_and_its_sender_where_it_cannot_overlap(
    is_overlapped, second
):
    """F of 2 ns, transfers of 5 ns: the next stage begins 7 ns after."""
    times = StageTimes(np.full((3, 2, 1), 2), 5, is_overlapped)
    played = play(Schedule("gpipe", 2, 2), times, is_forward_only=True)
    assert played.start_ns.tolist() == [[0, second], [7, second + 7]]


def test_within_a_stage_nothing_is_sent():
    """One stage with two chunks: a transfer time changes nothing."""
    schedule = Schedule("zbv", 1, 3, 2)
    times = equal_times(schedule, 1, 1, 1)
    assert play(schedule, StageTimes(times.work_ns, 50)).iteration_ns == 18


def test_held_activations_over_time():
    """1F1B, 3 stages, 4 microbatches: F F F B F B B B on the first."""
    played = play(Schedule("1f1b", 3, 4), equal_times(Schedule("1f1b", 3, 4), 1, 2))
    assert played.held()[0].tolist() == [1, 2, 3, 2, 3, 2, 1, 0]
    assert played.held()[2].tolist() == [1, 0, 1, 0, 1, 0, 1, 0]


def test_a_long_pipeline_is_played_and_a_longer_one_refused():
    schedule = Schedule("interleaved", 64, 512, 8)
    assert play(schedule, equal_times(schedule, 1, 2)).bubbles()[0] == pytest.approx(63 / 4159)
    with pytest.raises(SpecError, match="at most 1,000,000 pieces, found 2,000,000"):
        play(Schedule("gpipe", 1000, 1000), equal_times(Schedule("gpipe", 1000, 1000), 1, 2))


def test_stages_that_no_machine_has_are_refused_before_they_are_played():
    schedule = Schedule("1f1b", 100_000, 2)
    with pytest.raises(SpecError, match="at most 512 stages, found 100,000"):
        play(schedule, equal_times(schedule, 1, 1))


def test_an_iteration_beyond_what_a_table_holds_is_refused():
    schedule = Schedule("1f1b", 4, 100_000)
    with pytest.raises(SpecError, match=r"less than 4.61e\+09 s, found 800,000 pieces that add up"):
        play(schedule, equal_times(schedule, 10**15, 1))
