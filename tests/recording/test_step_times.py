"""Which steps are timed around a window, told as what a script does by a clock of its own."""

from __future__ import annotations

import pytest

from moeprof.recording.steps import AFTER, BEFORE, Action, NextStep, StepTimes


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def times(clock):
    return StepTimes(clock)


def step(times, clock, lasts: int, compilations: int = 1, key: str = "step") -> None:
    times.begins(key, compilations)
    times.begun(key, Action.NOTHING)
    clock.now += lasts


def opening(times, clock, lasts: int, ours: int = 1000) -> dict[str, list[int]]:
    """A step before which a window opens, which takes us so long."""
    times.begins("step", 1)
    facts = times.opened("step")
    clock.now += ours
    times.begun("step", Action.OPEN)
    clock.now += lasts
    return facts


def closing(times, clock, lasts: int, ours: int = 5000) -> None:
    times.begins("step", 1)
    times.closed()
    clock.now += ours
    times.begun("step", Action.CLOSE)
    clock.now += lasts


def test_steps_before_in_and_behind_a_window_have_none_of_our_own_work(times, clock):
    for lasts in (90, 11, 12):
        step(times, clock, lasts)
    facts = opening(times, clock, 14)
    step(times, clock, 15)
    closing(times, clock, 13)
    step(times, clock, 10)
    step(times, clock, 99)  # the last one has no end
    assert facts == {"before_ns": [90, 11, 12], "in_ns": [14, 15], "after_ns": [13, 10]}


def test_a_step_that_compiles_starts_the_settled_ones_again(times, clock):
    step(times, clock, 50, compilations=0)
    step(times, clock, 10, compilations=1)
    step(times, clock, 700, compilations=1)  # compiles: the next one counts one more
    step(times, clock, 12, compilations=2)
    times.begins("step", 2)
    assert times.opened("step")["before_ns"] == [12]


def test_only_the_last_steps_before_and_the_first_behind_are_kept(times, clock):
    for lasts in range(BEFORE + 4):
        step(times, clock, 100 + lasts)
    facts = opening(times, clock, 7)
    closing(times, clock, 1)
    assert not times.is_over
    for lasts in range(AFTER + 3):
        step(times, clock, 2 + lasts)
    assert facts["before_ns"] == [100 + i for i in range(4, BEFORE + 4)]
    assert (facts["in_ns"], facts["after_ns"]) == ([7], [1, 2, 3, 4, 5])
    assert times.is_over


def test_other_functions_are_in_no_figure_of_the_window(times, clock):
    step(times, clock, 10)
    step(times, clock, 3, key="evaluate")
    facts = opening(times, clock, 20)
    step(times, clock, 4, key="evaluate")
    step(times, clock, 5, key="evaluate")
    step(times, clock, 0)
    assert facts == {"before_ns": [13], "in_ns": [29], "after_ns": []}


def test_a_window_that_closes_at_an_annotations_end_has_no_step_of_ours(times, clock):
    step(times, clock, 10)
    facts = opening(times, clock, 20)
    times.closed()  # and an export of 5000 follows, which is in no step
    clock.now += 5000
    step(times, clock, 11)
    step(times, clock, 0)
    assert facts == {"before_ns": [10], "in_ns": [], "after_ns": [11]}


def test_without_a_window_there_is_nothing_left_to_time(times, clock):
    step(times, clock, 1)
    assert times.is_over


def test_the_first_step_of_the_window_s_kind_after_it_is_noted_without_the_time_of_closing():
    """Closed for 400 ns; another function runs at 900, the step at 1,000: it would have at 600."""
    facts = {}
    after = NextStep()
    assert not after.begins("train", 50)
    after.expect(facts, "train", 400)
    assert not after.begins("helper", 900)
    assert after.begins("train", 1_000)
    assert facts == {"next_step_start_ns": 600}
    assert not after.begins("train", 2_000)
    assert facts == {"next_step_start_ns": 600}
