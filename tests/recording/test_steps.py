"""When a window opens and closes, told as a list of what a script does."""

from __future__ import annotations

import pytest

from moeprof.recording.steps import GIVE_UP_STEPS, Action, Phase, StepCounter, WindowPlan

OPEN, CLOSE, NOTHING = Action.OPEN, Action.CLOSE, Action.NOTHING


def call(counter: StepCounter, name: str = "step", *, compile_s: float = 0.0) -> Action:
    """One call of a jitted function that compiles for so long."""
    action = counter.begin(name, name)
    if compile_s:
        counter.compiled()
        counter.spent_compiling(name, name, compile_s)
    return action


def annotated(counter: StepCounter, number: int | None, *calls: str) -> list[Action]:
    """One annotated step around some calls; the actions at its two ends."""
    begin = counter.begin("annotation", "train", is_annotation=True, number=number)
    for name in calls:
        call(counter, name)
    return [begin, counter.end("annotation")]


def opened_at(counter: StepCounter, calls: int, **facts: float) -> int | None:
    """Index of the call that opens the window, of so many calls."""
    return next((i for i in range(calls) if call(counter, **facts) is OPEN), None)


@pytest.mark.parametrize(("skip", "first"), [(0, 3), (1, 4), (5, 8)])
def test_a_window_opens_after_one_compiling_two_settled_and_the_skipped_steps(skip, first):
    counter = StepCounter(WindowPlan(skip, 3))
    call(counter, compile_s=1.0)
    assert opened_at(counter, 20) == first - 1  # counted from the second call
    assert counter.first_step == first
    assert counter.settled


def test_a_window_closes_before_the_call_after_its_last():
    counter = StepCounter(WindowPlan(0, 2))
    call(counter, compile_s=1.0)
    actions = [call(counter) for _ in range(6)]
    assert actions == [NOTHING, NOTHING, OPEN, NOTHING, CLOSE, NOTHING]
    assert (counter.first_step, counter.last_step, counter.steps_recorded) == (3, 4, 2)
    assert counter.phase is Phase.DONE


def test_a_late_compilation_starts_the_wait_again():
    counter = StepCounter(WindowPlan(0, 1))
    call(counter, compile_s=1.0)
    call(counter)
    call(counter, compile_s=1.0)  # a last batch of another shape, say
    assert opened_at(counter, 9) == 2  # calls 3 and 4 are quiet


def test_a_script_that_compiles_in_every_step_is_recorded_at_last_and_marked():
    counter = StepCounter(WindowPlan(1, 3))
    assert opened_at(counter, 100, compile_s=1.0) == GIVE_UP_STEPS
    assert not counter.settled


def test_the_function_that_compiled_longest_is_the_step_however_rarely_it_is_called():
    counter = StepCounter(WindowPlan(0, 1))
    for step in range(6):
        call(counter, "train", compile_s=9.0 if step == 0 else 0.0)
        for _ in range(4):
            call(counter, "micro", compile_s=1.0 if step == 0 else 0.0)
    assert counter.dominant() == "train"


def test_annotations_come_before_functions_once_they_repeat():
    counter = StepCounter(WindowPlan(0, 2))
    assert annotated(counter, 100, "train") == [NOTHING, NOTHING]
    assert annotated(counter, 101, "train") == [NOTHING, NOTHING]
    assert annotated(counter, 102, "train") == [OPEN, NOTHING]
    assert annotated(counter, 103, "train") == [NOTHING, CLOSE]
    assert (counter.first_step, counter.last_step) == (102, 103)


def test_an_annotation_that_came_once_is_no_step():
    counter = StepCounter(WindowPlan(0, 2))
    annotated(counter, 0, "train")
    for _ in range(10):
        call(counter, "train")
    assert counter.source == "train"


def test_the_annotation_that_repeats_most_is_the_step():
    counter = StepCounter(WindowPlan(0, 2))
    for _ in range(2):
        counter.begin("epoch", "epoch", is_annotation=True)
        for _ in range(4):
            annotated(counter, None)
        counter.end("epoch")
    assert counter.source == "annotation"


def test_windows_repeat_every_so_many_steps_from_beginning_to_beginning():
    counter = StepCounter(WindowPlan(0, 1, every_steps=4))
    actions = [call(counter) for _ in range(12)]
    assert [i for i, action in enumerate(actions) if action is OPEN] == [2, 6, 10]
    assert [i for i, action in enumerate(actions) if action is CLOSE] == [3, 7, 11]


def test_an_open_ended_window_closes_at_the_next_boundary_when_told():
    counter = StepCounter(WindowPlan(0, None))
    assert opened_at(counter, 5) == 2
    assert [call(counter) for _ in range(3)] == [NOTHING] * 3
    counter.record_at_most(1)
    assert call(counter) is CLOSE
    assert counter.steps_recorded == 4


@pytest.mark.parametrize(("cleanly", "steps"), [(True, 2), (False, 1)])
def test_a_step_cut_by_an_error_does_not_count(cleanly, steps):
    counter = StepCounter(WindowPlan(0, 2))
    assert opened_at(counter, 5) == 2
    call(counter)
    assert counter.end_of_script(cleanly=cleanly) is cleanly
    assert counter.steps_recorded == steps
