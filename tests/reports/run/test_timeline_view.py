"""What the page says of the timeline of one step, and when it has none."""

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.analyzers.drawings.one_step import drawn_step
from moeprof.answers.colours import COLOURS
from moeprof.reports.run.document import build
from moeprof.reports.run.figures import timeline_view
from moeprof.reports.run.page import render
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace

OPS = (hlo("dot", "dot", op_name="jit(f)/moe/experts/ragged_dot"), hlo("sum", "all-reduce"))
WORK = (
    *(kernel("dot", 30 * n, 20) for n in range(50)),
    kernel("sum", 2_000, 500),
    kernel("dot", 40_000, 1_000, device=1),
)


def document(trace):
    return build(trace, analyze(trace, is_drawn=True))


@pytest.fixture(scope="module")
def made():
    return document(traced(WORK, OPS))


def test_the_sentence_says_how_much_there_is(made):
    view = timeline_view(made)
    assert view is not None
    assert view.title == "Step 0, the one nearest to the median, piece by piece"
    assert view.sentence == "41.00 µs on 2 devices: 52 pieces of work, each drawn."


def test_the_sentence_says_what_was_merged():
    trace = traced(WORK, OPS)
    view = timeline_view(build(trace, {"one_step": drawn_step(trace, 10)}))
    assert view is not None
    assert view.sentence.startswith("41.00 µs on 2 devices: 52 pieces of work, drawn as ")
    assert "are merged with their neighbours" in view.sentence
    assert (view.span, view.held.split(":")[0]) == (
        "step",
        "The embedded JSON holds the pieces as they are drawn",
    )
    assert any("52 pieces of work are drawn as" in note for note in view.notes)


def test_the_legend_has_the_components_of_the_step_in_their_colours(made):
    view = timeline_view(made)
    assert view is not None
    assert [(part.component, part.colour) for part in view.parts] == [
        (name, COLOURS[name]) for name in ("grouped_gemm", "collectives", "idle")
    ]
    assert [part.is_hatched for part in view.parts] == [False, False, True]
    assert view.has_order


def test_without_steps_it_is_of_the_whole_capture():
    view = timeline_view(document(traced(WORK, OPS, steps={})))
    assert view is not None
    assert view.title == "The whole capture"
    assert (view.span, view.held) == ("capture", "Every piece is in the embedded JSON.")


def test_a_check_that_withholds_the_timeline_withholds_its_picture():
    made = traced(WORK, OPS)
    failed = Law("dropped_events", "fail", "70 % dropped", withholds=("timeline",))
    trace = Trace(**{**vars(made), "trust": (failed,)})
    assert timeline_view(document(trace)) is None


def test_the_page_of_several_runs_has_none(made):
    assert 'class="timeline"' in render([made])
    assert 'class="timeline"' not in render([made, made])


def test_no_drawing_no_timeline(made):
    assert timeline_view({**made, "drawings": {}}) is None


def test_one_device_has_no_order_to_choose():
    view = timeline_view(document(traced(WORK[:3], OPS)))
    assert view is not None
    assert not view.has_order
