from __future__ import annotations

from builders.report_cases import breakdown, document, trace

from moeprof.analyzers.questions.hints import SCHEMA
from moeprof.analyzers.registry import all_patterns
from moeprof.reports.run.document import build
from moeprof.reports.run.findings import plain_title, top_findings
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema

NONE = float("nan")
GIB = 2**30
TEXTS = {"evidence": "it shows", "change": "do less", "look": "breakdown", "source": ""}
PEAK = Schema("memory", (Column("content", "text", "", "what it is"),))


def hint(name: str, ns: float = NONE, share: float = NONE, size: float = NONE) -> dict[str, object]:
    gains = {"gain_ns": ns, "gain_share": share, "gain_bytes": size}
    return {"hint": name, **gains, **TEXTS}


def found(*rows: dict[str, object], peak: int | None = None):
    """The findings of a run whose program needs `peak` bytes."""
    hints = Analysis("hints", "What should be changed?", (), SCHEMA, SCHEMA.frame(rows))
    memory = Analysis(
        "memory", "What?", (Metric("program_peak", peak, "bytes"),), PEAK, PEAK.frame()
    )
    shown = {"hints": hints, "memory": memory, "breakdown": breakdown()}
    return top_findings(build(trace(), shown))


def test_every_pattern_has_a_sentence():
    for pattern in all_patterns():
        assert plain_title(pattern.name) == pattern.title
        assert len(pattern.title.split()) > 3


def test_a_pattern_without_a_sentence_is_told_by_its_name():
    assert plain_title("grouped_gemm_of_ranks") == "Grouped GEMM of ranks"


def test_they_stand_in_the_order_of_the_hints_and_show_shares_of_time():
    shown = found(
        hint("late_rank", 41.2e6, 0.1), hint("worst_case_buffers", size=3 * GIB), peak=10 * GIB
    )
    assert [one.key for one in shown.first] == ["late_rank", "worst_case_buffers"]
    assert [one.share for one in shown.first] == [0.1, 0.0]  # 3 of 10 GiB are no time
    assert shown.first[0].saved == (("41.20 ms", "a step, 10.0 %"),)
    assert shown.first[1].saved == (("3.000 GiB", "a device, 30.0 % of its peak"),)


def test_memory_whose_peak_is_not_known_is_told_without_a_share():
    shown = found(hint("worst_case_buffers", size=3 * GIB))
    assert shown.first[0].saved == (("3.000 GiB", "a device"),)


def test_three_are_first_and_the_others_follow():
    shown = found(*(hint("late_rank", ms * 1e6, ms / 412) for ms in (4, 3, 2, 1)))
    assert (len(shown.first), len(shown.others)) == (3, 1)
    assert shown.said.startswith("The first 3 of 4 findings, by time, then memory.")


def test_details_that_the_page_does_not_have_are_not_linked():
    row = hint("late_rank", 1e6, 0.01) | {"look": "stragglers"}
    assert found(row).first[0].anchor == ""


def test_withheld_hints_are_not_called_absent():
    made = build(trace(), {"hints": Analysis("hints", "?", (), SCHEMA, SCHEMA.frame(), ())})
    made["trust"][0] |= {"check": "clocks", "verdict": "fail", "withholds": ["hints"]}
    assert top_findings(made).said == "Withheld: clocks failed."


def test_without_the_question_there_is_no_answer():
    assert top_findings(document()) is None


def test_a_run_without_device_work_says_so_beside_what_was_looked_for():
    hints = Analysis("hints", "?", (), SCHEMA, SCHEMA.frame())
    made = build(trace(), {"hints": hints, "breakdown": breakdown({})})
    said, _, looked = top_findings(made).said.partition(" Looked for: ")
    assert said == "No known pattern shows in this run, of which no device work can be used."
    assert looked == f"{'; '.join(pattern.title for pattern in all_patterns())}."


def test_questions_are_named_by_their_titles():
    row = hint("late_rank", 1e6, 0.01) | {"change": "look at (breakdown) and (nothing_here)"}
    assert found(row).first[0].change == "Look at (see “Where the step goes”) and (nothing_here)"
