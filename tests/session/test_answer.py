"""One answer in Python: figures as in JSON, missing where they are withheld, drawn where it can."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import event, host, line, metadata, xspace
from session.conftest import DEEPEP

import moeprof
from moeprof.analyzers.registry import all_drawings, all_names, question
from moeprof.answers.document import drawn_rows
from moeprof.errors import SelectionError

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """A run whose devices left no event: a law withholds all figures."""
    file = tmp_path_factory.mktemp("idle") / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("python", event("train", 1, 9)))))
    return moeprof.load(file)


@pytest.mark.parametrize("name", all_names())
def test_an_answer_has_the_figures_of_the_command(deepep, printed, name):
    document = json.loads(printed("analyze", DEEPEP, "--only", name, "--json"))
    _is_same(deepep.ask(name), document["analyses"][name], document["analyses"][name]["rows"])


@pytest.mark.parametrize("drawing", all_drawings(), ids=lambda each: each.name)
def test_a_drawing_has_the_rows_of_the_command(deepep, whole, drawing):
    found = whole["drawings"][drawing.name]
    _is_same(deepep.ask(drawing.name), found, drawn_rows(found))


def _is_same(answer: moeprof.Answer, found, rows):
    assert answer.question == found["question"]
    assert answer.headline == {each["metric"]: each["value"] for each in found["headline"]}
    assert list(answer.notes) == found["notes"]
    assert list(answer.table.columns) == [column["name"] for column in found["columns"]]
    assert len(answer.table) == len(rows)
    for got, expected in zip(answer.table.to_dict("records"), rows, strict=True):
        assert {name: None if _is_missing(value) else value for name, value in got.items()} \
            == expected  # fmt: skip
    for column in found["columns"]:
        assert answer.units[column["name"]] == column["unit"]
        assert answer.meanings[column["name"]] == column["meaning"]
        assert answer.table.attrs["units"][column["name"]] == column["unit"]


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


@pytest.mark.parametrize("name", all_names())
def test_status_basis_and_sentence(deepep, name):
    answer = deepep.ask(name)
    assert answer.status == ("none" if name == "pipeline" else "ok")
    assert answer.basis == "step"
    assert answer.sentence.endswith(".")
    assert answer.sentence in repr(answer)
    assert str(answer).startswith(question(name).title)
    assert "--only" not in str(answer)


def test_a_drawing_reads_as_text_and_in_a_cell(deepep):
    for drawing in all_drawings():
        answer = deepep.ask(drawing.name)
        assert ".table has every row" in str(answer)
        assert ".table has them" in answer._repr_html_()
        assert answer.figures == ()


FROM_PROGRAMS_OR_ROUTING = ("expert_load", "memory")
"""Questions that the devices' events do not answer: of these nothing is withheld."""


@pytest.mark.parametrize("name", all_names())
def test_withheld_figures_are_missing(idle, name):
    answer = idle.ask(name)
    assert set(answer.headline.values()) <= {None}
    assert answer.table.empty
    assert answer.figures == ()
    if name in FROM_PROGRAMS_OR_ROUTING:
        assert answer.status == "not_known"
        return
    assert answer.status == "withheld"
    assert answer.sentence.startswith("Withheld: ")
    assert answer.notes[0].startswith("withheld: ")
    with pytest.raises(SelectionError, match=r"its figures are withheld; \.notes says why"):
        answer.figure()


def test_columns_of_figures_without_any_are_still_figures(idle):
    table = idle.breakdown().table
    assert table["per_step_ns"].dtype == "float64"
    assert table["per_step_ns"].sum() == 0


def test_a_figure_that_one_row_lacks_is_nan():
    table = moeprof.load(DEEPEP, steps=3).step_time().table.set_index("step")
    assert math.isnan(table["interval_ns"][3])  # no used step follows
    assert table["duration_ns"][3] == 10_146_901


@pytest.mark.parametrize("name", all_names())
def test_every_figure_is_drawn(deepep, name):
    from plotly.graph_objects import Figure

    answer = deepep.ask(name)
    for place in range(len(answer.figures)):
        figure = answer.figure(place)
        assert isinstance(figure, Figure)
        assert figure.data
        assert figure.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"
        assert answer.figure(place) is not figure  # a user may change his own


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("pipeline", 0, "pipeline: expected a figure, found none, as this run has none of the"),
        ("launch", 0, "launch: expected a figure, found none, as nothing is drawn of it; .table"),
        ("step_time", 3, "step_time: no figure has the place 3; there are: 0 to 0"),
        ("memory", -1, "memory: no figure has the place -1; there are: 0 to 1"),
        ("heap", 0, "heap: its figures are those of memory: .ask('memory').figure()"),
    ],
)
def test_a_figure_that_there_is_none_of_is_one_line(deepep, name, place, said):
    with pytest.raises(SelectionError) as error:
        deepep.ask(name).figure(place)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_cell_has_the_first_rows_with_their_units(deepep):
    cell = deepep.breakdown()._repr_html_()
    assert cell.count("<tr>") == 13  # the heading and twelve
    assert "324.4 µs" in cell
    assert "text-align: right" in cell
    assert "Not shown: 59 rows and the column" in cell
    assert "<script" not in cell


def test_a_cell_of_hints_says_what_to_do(deepep):
    cell = deepep.hints()._repr_html_()
    assert "→ copy metrics to the host only every some steps" in cell
    assert "details: .step_time()" in cell
    assert "<table" not in cell


def test_a_cell_has_no_table_where_there_is_none(deepep):
    assert "<table" not in deepep.pipeline()._repr_html_()


def test_tables_can_be_worked_with(deepep):
    table = deepep.breakdown().table
    per_component = table.groupby("component")["per_step_ns"].sum()
    assert isinstance(per_component, pd.Series)
    assert per_component.sum() == pytest.approx(deepep.breakdown().headline["op_time"])
