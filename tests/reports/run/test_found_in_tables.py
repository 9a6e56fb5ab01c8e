"""What the tables of a page show and find: numbers with their headings, and what is not there."""

from __future__ import annotations

import pytest
from builders.report_cases import document, step_time, trace

from moeprof.reports.parts.views import finding_table
from moeprof.reports.run.document import build
from moeprof.reports.run.page import render
from moeprof.tables.analysis import Analysis
from moeprof.tables.schema import Column, Schema

RANKS = Schema(
    "ranks",
    (
        Column("rank", "int64", "", "place of the device among all"),
        Column("last_rank", "int64", "", "who comes last most often; -1 where unknown"),
        Column("component", "text", "", "part of the step"),
        Column("change", "int64", "", "from 5 to -10 at most"),
    ),
)
ROWS = (
    (5, 3, "grouped_gemm", -1),
    (55, 5, "grouped_gemm", 5),
    (3, -1, "dispatch", -10),
    (15, 55, "rank of 5", 5),
)


def ranks():
    rows = [dict(zip(RANKS.names, row, strict=True)) for row in ROWS]
    asked = "Who do the others wait for?"
    made = Analysis("ranks", asked, (), RANKS, RANKS.frame(rows))
    steps = trace()
    return build(steps, {"step_time": step_time(steps.steps), "ranks": made})


@pytest.fixture(scope="module")
def page(open_once):
    return open_once(render([ranks()]))


def found(page) -> list[str]:
    return page.eval_on_selector_all(
        "#ranks-table tbody tr:not([hidden]) td:first-child",
        "cells => cells.map(cell => cell.textContent)",
    )


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ("rank 5", ["5", "55"]),  # its rank, or the one that comes last; never 55 or 15
        ("Rank  55", ["55", "15"]),
        ("last rank 5", ["55"]),
        ("gemm rank 3", ["5"]),
        ("rank 4", []),
        ("rank", ["15"]),  # a heading alone is no match
        ("grouped_gemm", ["5", "55"]),  # the id of what is shown as words
        ("grouped gemm", ["5", "55"]),
        ("unknown", []),  # the meaning of a column is no cell
    ],
)
def test_a_word_and_a_number_are_found_together(page, wanted, rows):
    page.get_by_role("searchbox", name="Find in all tables").fill(wanted)
    assert found(page) == rows


def test_what_is_absent_is_a_dash_and_stands_last_either_way(page):
    page.get_by_role("searchbox", name="Find in all tables").fill("")
    cell = page.locator("#ranks-table tbody tr").nth(2).locator("td").nth(1)
    assert cell.inner_text() == "–"
    assert cell.get_attribute("title") == "who comes last most often; -1 where unknown"
    assert cell.get_attribute("data-value") == "-1"
    button = page.locator("#ranks-table th button").nth(1)
    orders = []
    for _ in range(2):
        button.click()
        orders.append(found(page))
    assert orders == [["15", "55", "5", "3"], ["5", "55", "15", "3"]]


def test_minus_one_is_a_number_where_the_column_says_nothing_of_it():
    table = finding_table(ranks()["analyses"]["ranks"], "s", "s")
    assert [row[3].text for row in table.rows] == ["-1", "5", "-10", "5"]
    assert [row[1].text for row in table.rows] == ["3", "5", "–", "55"]


def test_components_are_written_as_on_the_rest_of_the_page():
    cells = [row[0] for row in finding_table(document()["analyses"]["breakdown"], "b", "b").rows]
    assert cells[0].text == "grouped GEMM"
    assert cells[0].value == "grouped_gemm"
