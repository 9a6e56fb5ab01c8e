import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.analyzers.questions.pipeline import pipeline_stages
from moeprof.analyzers.stages.projected import projected
from moeprof.analyzers.stages.schedule import causes_of_idle
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_play import StageWork

MS = 1_000_000


def causes(work_ms, iteration_ms, rounds):
    found = causes_of_idle(np.array(work_ms) * MS, iteration_ms * MS, rounds)
    return [(found[name] / MS).tolist() for name in ("fill_ns", "imbalance_ns", "wait_ns")]


def test_equal_stages_wait_for_the_schedule_alone():
    """4 stages, 8 microbatches of 1 ms: 11 ms, of which 3 fill and drain."""
    assert causes([8, 8, 8, 8], 11, 8) == [[3.0] * 4, [0.0] * 4, [0.0] * 4]


def test_a_longer_stage_makes_the_others_wait():
    """Stages of 8 and 16 ms in 8 rounds: T* = 16 + 8/8 = 17 ms; 20 were measured.

    Stage 0 idles 12 ms: 16/8 = 2 to drain, (16 − 8) · 7/8 = 7 for stage 1, 3 beyond.
    Stage 1 idles 4 ms: 8/8 = 1 to fill, 3 beyond.
    """
    assert causes([8, 16], 20, 8) == [[2.0, 1.0], [7.0, 0.0], [3.0, 3.0]]


def test_less_idle_time_than_the_schedule_demands_goes_to_it_first():
    """T* = 9 ms, but 8.5 were measured: weight gradients filled the bubble."""
    found = causes_of_idle(np.array([8 * MS, 8 * MS]), 8_500_000, 8)
    assert found["fill_ns"].tolist() == [500_000] * 2
    assert found["imbalance_ns"].tolist() == found["wait_ns"].tolist() == [0, 0]


@given(
    st.lists(st.integers(0, 10**18), min_size=1, max_size=64),
    st.integers(0, 10**18),
    st.integers(1, 10**6),
)
def test_the_three_add_up_to_the_idle_time_and_none_is_negative(work, more, rounds):
    iteration = max(work) + more
    found = causes_of_idle(np.array(work), iteration, rounds)
    assert (sum(found.values()) == iteration - np.array(work)).all()
    assert all((part >= 0).all() for part in found.values())


@pytest.mark.parametrize(
    ("schedule", "total_ms", "bubble"),
    [(Schedule("gpipe", 4, 8), 11, 3 / 11), (Schedule("circular", 4, 8, 2), 9.5, 3 / 19)],
    ids=str,
)
def test_a_projected_pipeline_is_its_schedule(schedule, total_ms, bubble):
    analysis = pipeline_stages(
        projected(schedule, StageWork((MS,), (1, 0, 0)), is_forward_only=True)
    )
    headline = {m.metric: m.value for m in analysis.headline}
    assert headline["iteration_time"] == total_ms * MS
    assert headline["bubble_share"] == pytest.approx(bubble)
    assert headline["fill_share"] == pytest.approx(bubble)
    assert headline["imbalance_share"] == headline["wait_share"] == 0
    assert (analysis.table["fill_ns"] == analysis.table["idle_ns"]).all()


def test_two_thirds_of_the_work_are_backward():
    schedule = Schedule("1f1b", 2, 2)
    table = pipeline_stages(projected(schedule, StageWork((3 * MS,)))).table
    assert table["forward_ns"].tolist() == [2 * MS] * 2
    assert table["backward_ns"].tolist() == [4 * MS] * 2
