from __future__ import annotations

import pytest
from builders.report_cases import breakdown, document, hostile_document, receive_buffers, trace
from plotly.graph_objects import Figure

from moeprof.analyzers.registry import all_questions, question
from moeprof.answers.bars import plotly_text
from moeprof.answers.colours import PHASES
from moeprof.reports.run.document import build
from moeprof.reports.run.figures import comparison


def figure_of(name: str):
    """What draws the first figure of a question."""
    return question(name).figures[0].draw


def all_figures():
    return [figure.draw for each in all_questions() for figure in each.figures]


def traces(figure):
    return {trace["name"]: trace for trace in figure["data"]}


@pytest.mark.parametrize("made", [document(), hostile_document()], ids=["usual", "hostile"])
def test_plotly_knows_every_attribute(made):
    for draw in all_figures():
        Figure(draw(made))
    Figure(comparison([made, document()]))


def test_breakdown_bars_are_milliseconds_by_component_and_phase():
    parts = {("gemm", "forward"): 3, ("norm", "forward"): 1, ("gemm", "backward"): 4}
    figure = figure_of("breakdown")(build(trace(), {"breakdown": breakdown(parts)}))
    drawn = {name: (t["y"], t["x"]) for name, t in traces(figure).items() if t["x"] != [None]}
    assert drawn == {
        "GEMM, forward": ([0], [3.0]),
        "norm, forward": ([1], [1.0]),
        "GEMM, backward": ([0], [4.0]),
    }
    assert figure["layout"]["yaxis"]["ticktext"] == ["GEMM", "norm"]


def test_phases_have_patterns_and_a_legend_of_their_own():
    drawn = traces(figure_of("breakdown")(document()))
    shapes = {name: drawn[name]["marker"]["pattern"]["shape"] for name in PHASES}
    assert len(set(shapes.values())) == len(shapes)
    assert all(drawn[name]["showlegend"] for name in shapes)
    assert not drawn["grouped GEMM, recompute"]["showlegend"]
    assert drawn["grouped GEMM, recompute"]["marker"]["pattern"]["shape"] == shapes["recompute"]


def test_comparison_gives_a_component_the_same_colour_in_every_run():
    figure = comparison([document("a"), document("b", scale=0.5)])
    bars = traces(figure)["attention, forward"]
    assert (bars["y"], bars["x"]) == ([0, 1], [30.0, 15.0])
    assert bars["marker"]["color"] == traces(figure)["attention, backward"]["marker"]["color"]


def test_a_run_without_a_component_has_no_bar_for_it():
    other = build(trace("runs/other"), {"breakdown": breakdown({("copies", "forward"): 2})})
    bars = traces(comparison([document(), other]))["copies, forward"]
    assert (bars["y"], bars["x"]) == ([1], [2.0])


def test_receive_buffers_show_mebibytes_and_only_known_use():
    buffers = (("a", 4 * 2**20, 2.0**20), ("b", 2**20, float("nan")))
    figure = figure_of("receive_buffers")(
        build(trace(), {"receive_buffers": receive_buffers(*buffers)})
    )
    drawn = {name: (t["y"], t["x"]) for name, t in traces(figure).items()}
    assert drawn == {"worst case": ([0, 1], [4.0, 1.0]), "used": ([0], [1.0])}


def test_dropped_steps_are_grey_and_say_why():
    drawn = traces(figure_of("step_time")(document()))
    assert drawn["not used"]["x"] == ["2"]
    assert drawn["not used"]["customdata"] == ["900.0 ms: compiles"]
    assert (drawn["used"]["x"], drawn["used"]["y"]) == (["3", "4"], [410.0, 414.0])


def test_nothing_found_draws_nothing():
    empty = build(
        trace(steps=()), {"breakdown": breakdown({}), "receive_buffers": receive_buffers()}
    )
    assert all(draw(empty) is None for draw in all_figures())
    assert comparison([empty, empty]) is None


def test_markup_in_a_name_is_escaped_for_plotly():
    assert plotly_text("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"
