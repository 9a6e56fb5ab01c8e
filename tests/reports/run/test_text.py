from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from builders.report_cases import breakdown, document, hostile_document, receive_buffers, trace
from rich.console import Console

from moeprof.analyzers.questions.hints import SCHEMA as HINTS
from moeprof.reports.run import terminal as text
from moeprof.reports.run.document import build
from moeprof.tables.analysis import Analysis, Metric

DOCUMENTS = {"usual": document, "hostile": hostile_document}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_is_wider_than_80_columns(name):
    made = DOCUMENTS[name]()
    for drawn in (text.summary(made), text.tables(made), text.tables(made, ["receive_buffers"])):
        commands = [line for line in drawn.plain.splitlines() if line.startswith("Next ")]
        assert len(commands) == 1
        lines = [line for line in drawn.plain.splitlines() if line not in commands]
        assert max(map(len, lines)) <= 80


def test_summary(golden):
    golden("summary.txt", text.summary(document()).plain)


def test_tables(golden):
    golden("tables.txt", text.tables(document()).plain)


def test_summary_of_an_untrustworthy_run(golden):
    checks = (
        ("truncated", "warn", "recovered 1,000,000 events, the rest is unreadable (1 place, first: "
         "plane 3 ends after 12 of 40 bytes)"),
        ("device_work", "fail", "no device event"),
        ("programs", "ok", "2 programs"),
    )  # fmt: skip
    made = build(trace(steps=((1, 5, "compiles"),), trust=checks), {"breakdown": breakdown({})})
    golden("summary-untrusted.txt", text.summary(made).plain)


def test_no_control_code_reaches_the_terminal():
    drawn = text.summary(hostile_document()).plain + text.tables(hostile_document()).plain
    assert not any(ord(c) < 32 and c != "\n" for c in drawn)


def test_colour_goes_only_to_a_terminal():
    written = StringIO()
    Console(file=written, force_terminal=False).print(text.summary(document()))
    assert "\x1b" not in written.getvalue()


def test_rows_left_out_are_counted_and_the_way_to_them_is_named():
    rows = [(f"op.{n}", 2**20, 1.0) for n in range(15)]
    made = build(trace(), {"receive_buffers": receive_buffers(*rows)})
    assert "… and 3 rows more: --only receive_buffers" in text.tables(made).plain
    assert "op.14" in text.tables(made, ["receive_buffers"]).plain


def test_columns_left_out_are_named():
    made = build(trace(), {"receive_buffers": receive_buffers(("x", 1, 1.0))})
    finding = made["analyses"]["receive_buffers"]
    finding["columns"] += [{"name": f"wide_{n}" * 3, "unit": "", "meaning": ""} for n in range(5)]
    finding["rows"] = [row | {f"wide_{n}" * 3: n for n in range(5)} for row in finding["rows"]]
    drawn = text.tables(made).plain
    assert "Too wide for this terminal: " in drawn
    assert "wide 4wide 4wide 4" in drawn.replace("\n", " ")


def test_shares_that_nothing_explains_are_told_even_where_they_are_nothing():
    made = build(trace(), {"breakdown": breakdown({("attention", "forward"): 5})})
    assert "\n  unattributed 0.0 % · other 0.0 %" in text.overview(made).plain


def test_without_a_used_step_the_parts_are_of_the_whole_capture():
    whole = "per device over the whole capture"
    finding = breakdown()
    finding = replace(finding, basis="capture")
    drawn = text.summary(build(trace(steps=()), {"breakdown": finding})).plain
    assert f"of 400.0 ms op time {whole}" in drawn
    assert "per device and step" not in drawn


def test_a_column_with_a_heading_of_its_own_shows_it():
    made = document()
    made["analyses"]["breakdown"]["columns"][2]["heading"] = "in capture"
    assert "in capture" in text.tables(made).plain


def hinted(*gains):
    table = HINTS.frame(
        [
            {"hint": f"late_rank_{place}", "gain_ns": gain, "gain_share": 0.25,
             "look": "stragglers", "gain_bytes": float("nan"), "source": "",
             "evidence": "others wait " * 12, "change": "do " * 40}
            for place, gain in enumerate(gains)
        ]
    )  # fmt: skip
    return build(trace(), {"hints": Analysis("hints", "What?", (), HINTS, table)})


def test_the_overview_says_what_to_do_in_three_points():
    said = text.overview(hinted(2e6, 1e6, float("nan"), 5e5)).plain
    assert " 1. Late rank 0: saves at most 2.000 ms a step (25.0 %)\n" in said
    assert " 3. Late rank 2\n" in said  # what it saves is not known
    assert "… and 1 more: --only hints" in said
    assert max(map(len, said.splitlines())) <= 80
    assert " 4. Late rank 3" in text.tables(hinted(2e6, 1e6, 7e5, 5e5), ["hints"]).plain


def test_a_long_command_goes_on_behind_a_backslash():
    path = "runs/" + "deep/" * 15
    drawn = text.tables(document(path)).plain
    assert drawn.endswith(f"Next   moeprof report \\\n         {path}")
    short = text.tables(document("runs/base")).plain
    assert short.endswith("Next   moeprof report runs/base")


def test_a_long_title_of_a_finding_is_wrapped():
    made = hinted(2e6)
    (row,) = made["analyses"]["hints"]["rows"]
    row.update(hint="a_pattern_with_quite_a_long_name", gain_bytes=30 << 20)
    said = text.overview(made)
    told = " ".join(said.plain.split())
    assert "saves at most 2.000 ms a step (25.0 %) and 30.00 MiB a device" in told
    assert max(map(len, said.plain.splitlines())) <= 80


def test_without_a_finding_the_overview_says_so_where_patterns_were_looked_for():
    none = Analysis("hints", "What?", (), HINTS, HINTS.frame())
    parts = breakdown({("attention", "forward"): 5})
    told = "No known pattern shows in this run"
    assert told in text.overview(build(trace(), {"hints": none, "breakdown": parts})).plain
    assert told not in text.overview(build(trace(), {"breakdown": parts})).plain
    assert told not in text.overview(build(trace(), {"hints": none})).plain  # nor any work
    assert told not in text.overview(hinted(2e6)).plain


def test_op_time_of_several_threads_is_told_to_be_more_than_the_step():
    long = breakdown({("attention", "forward"): 10**12})
    drawn = " ".join(text.overview(build(trace(), {"breakdown": long})).plain.split())
    assert "op time per device and step, more than the step, as several streams run" in drawn
    brief = breakdown({("attention", "forward"): 5})
    assert "more than the step" not in text.overview(build(trace(), {"breakdown": brief})).plain


@pytest.mark.parametrize(
    ("none", "told"), [(0.25, ", not known 25.0 %"), (0.0, "guessed 0.0 % unattributed")]
)
def test_what_is_not_known_ends_the_line_on_names(none, told):
    finding = breakdown({("attention", "forward"): 5})
    shares = {"named_by_program_share": 1 - none, "named_by_structure_share": 0.0,
              "guessed_share": 0.0, "unattributed_share": none}  # fmt: skip
    known = tuple(Metric(name, value, "share") for name, value in shares.items())
    made = build(trace(), {"breakdown": replace(finding, headline=known)})
    assert told in " ".join(text.overview(made).plain.split())
