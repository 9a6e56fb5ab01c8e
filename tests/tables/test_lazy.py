import dataclasses

import pandas as pd
import pytest
from builders.frames import trace_with

from moeprof.tables.trace import STEPS, Trace


@pytest.fixture
def looks() -> list[str]:
    return []


@pytest.fixture
def trace(looks) -> Trace:
    def steps() -> pd.DataFrame:
        looks.append("steps")
        return STEPS.frame()

    return trace_with(steps=steps)


def test_a_frame_is_read_at_the_first_look_and_once(trace, looks):
    assert looks == []
    assert trace.steps.equals(trace.steps)
    assert trace.table("steps") is trace.table("steps")
    assert looks == ["steps"]


def test_what_is_written_into_a_frame_changes_no_trace(trace):
    frame = trace.steps
    frame["step"] = -7
    frame.loc[len(frame)] = [0, 0, 0, 0, True, ""]
    assert not len(trace.steps)
    assert not len(trace.table("steps"))


def test_a_trace_shows_itself_without_reading(trace, looks):
    assert repr(trace) == "Trace('run', 5 events)"
    assert looks == []


def test_a_frame_that_is_left_out_is_an_error():
    with pytest.raises(TypeError, match="missing 16 required positional arguments: 'events'"):
        Trace(trace_with().meta, ())


def test_a_trace_does_not_change(trace):
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.steps = STEPS.frame()


def test_one_frame_may_be_replaced(trace):
    other = STEPS.frame()
    assert dataclasses.replace(trace, steps=other).steps.equals(other)
