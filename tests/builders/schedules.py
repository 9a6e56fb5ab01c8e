"""Schedules of all names and shapes, for property tests."""

from hypothesis import strategies as st

from moeprof.specs.schedule import REPEATED, SCHEDULES, V_SHAPED, Schedule


@st.composite
def schedules(draw, names=SCHEDULES, most_stages=9):
    """Any schedule; microbatches of the interleaved one in groups of as many as stages."""
    name = draw(st.sampled_from(names))
    stages = draw(st.integers(1, most_stages))
    microbatches = draw(st.integers(1, 24))
    chunks = draw(st.integers(1, 4)) if name in REPEATED else 1
    if name == "interleaved":
        microbatches = stages * draw(st.integers(1, 4))
    return Schedule(name, stages, microbatches, 2 if name in V_SHAPED else chunks)
