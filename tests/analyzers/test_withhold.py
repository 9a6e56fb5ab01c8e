"""What falls with a law beside whole questions: figures that need more than the rest, and hints."""

import dataclasses
from pathlib import Path

import pytest

from moeprof.analyzers import analyze, without_withheld
from moeprof.analyzers.dropped import DROPPED
from moeprof.analyzers.laws import with_questions
from moeprof.analyzers.question import Taken
from moeprof.analyzers.questions.hints import SCHEMA as HINTS
from moeprof.analyzers.registry import all_questions, question
from moeprof.ingest import open_run
from moeprof.reports.parts.phrases import withheld_by
from moeprof.reports.run.document import build
from moeprof.reports.run.findings import top_findings
from moeprof.reports.run.terminal import overview
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.law import Law, Need

DATA = Path(__file__).parents[1] / "data" / "gpu"
TOKENS = {"tokens_per_step", "tokens_per_second_device", "step_tokens_per_second_device"}


def broken(*needs):
    return with_questions(Law("made", "fail", "it is so", needs))


def fallen(name, *needs):
    """Figures of a question that is shown, which a law that breaks these needs withholds."""
    asked = question(name)
    answer = Analysis(name, "?", (), asked.schema, asked.schema.frame())
    shown = without_withheld({name: answer}, [broken(*needs)])[name]
    assert shown.status != "withheld"
    return {figure for each in shown.withheld for figure in each.scope.figures}


def test_figures_that_fall_alone_are_figures_and_need_something():
    run = open_run(DATA / "sparse-gmm-deepep-graphs")
    for asked in (each for each in all_questions() if each.taken):
        metrics = {metric.metric for metric in asked.run(run).headline}
        for taken in asked.taken:
            assert set(taken.figures) <= metrics | set(asked.schema.names)
            assert taken.question or taken.needs
            assert not taken.needs & asked.needs


def test_a_figure_falls_with_its_question_or_its_need():
    by_question, by_need = Taken(("x",), "ops"), Taken(("x",), needs=frozenset({Need.RECEIVED}))
    assert by_question.falls_with(broken(Need.COMPONENTS))
    assert not by_question.falls_with(broken(Need.RECEIVED))
    assert by_need.falls_with(broken(Need.RECEIVED))
    assert not by_need.falls_with(Law("fine", "ok", "holds"))


@pytest.mark.parametrize("need", [Need.PROGRAMS, Need.PROGRAMS_THAT_RAN])
def test_what_is_read_off_programs_falls_with_them(need):
    assert fallen("step_time", need) >= TOKENS
    assert fallen("expert_load", need) == set(DROPPED)


def test_tokens_take_nothing_from_what_ranks_received():
    assert not fallen("step_time", Need.RECEIVED)


def test_dropped_pairs_fall_with_the_counts_that_they_come_from():
    assert fallen("expert_load", Need.RECEIVED) == set(DROPPED)
    assert fallen("expert_load", Need.EVERY_DEVICE) == set(DROPPED)


OF_INTERVALS = {"interval_mfu", "interval_mfu_at_most"}
OF_THE_STEP = {"mfu", "mfu_at_most", "hfu", *OF_INTERVALS}
OF_ROWS = {
    *OF_THE_STEP,
    *("model_flops", "model_flops_at_most", "hardware_flops", "roofline_time", "flops", "bytes"),
    *("intensity", "tflop_per_s", "tb_per_s", "bound", "compute_share", "memory_share"),
    "roofline_ns",
}


@pytest.mark.parametrize("need", [Need.DEVICE_CLOCKS, Need.WHOLE_STEPS])
def test_what_divides_by_the_step_falls_with_its_time(need):
    assert fallen("roofline", need) == OF_THE_STEP
    assert fallen("roofline", Need.INTERVALS) == OF_INTERVALS


@pytest.mark.parametrize("need", [Need.ROUTING, Need.RECEIVED])
def test_flops_of_used_rows_fall_with_the_recorded_rows(need):
    assert fallen("roofline", need) == OF_ROWS


@pytest.mark.parametrize("need", [Need.PROGRAMS, Need.PROGRAMS_THAT_RAN])
def test_all_that_the_roofline_reads_off_programs_falls_with_them(need):
    assert fallen("roofline", need) == OF_ROWS | {"kind", "dtype", "covered_share"}


@pytest.mark.parametrize("need", [Need.DEVICE_CLOCKS, Need.PROGRAMS, Need.ROUTING])
def test_no_rate_stands_beside_a_withheld_source_on_the_first_screen(need):
    run, asked = open_run(DATA / "sparse-gmm-deepep-graphs"), ["step_time", "roofline"]
    assert "MFU" in overview(build(run, analyze(run, asked))).plain
    doubted = dataclasses.replace(run, trust=(*run.trust, broken(need)))
    assert "MFU" not in overview(build(doubted, analyze(doubted, asked))).plain


def hinted(*rows):
    """Hints by what they look at, with what each saves."""
    texts = dict.fromkeys(("evidence", "change", "source"), "so")
    table = HINTS.frame(
        [
            {"hint": f"of_{look}", "look": look, "gain_ns": gain, "gain_share": 0.1, **texts}
            | {"gain_bytes": float("nan")}
            for look, gain in rows
        ]
    )
    most = max(gain for _look, gain in rows)
    metrics = (Metric("hints", len(rows), "count"), Metric("largest_gain", most, "ns"))
    return {"hints": Analysis("hints", "?", metrics, HINTS, table)}


def test_a_hint_falls_with_the_answer_that_has_its_details():
    found = hinted(("breakdown", 9.0), ("memory", 4.0), ("breakdown", 2.0))
    shown = without_withheld(found, [broken(Need.COMPONENTS)])["hints"]
    assert shown.table["hint"].tolist() == ["of_memory"]
    assert [metric.value for metric in shown.headline] == [1, 4.0]
    assert shown.notes[0] == "2 hint(s) left out: their details are withheld (made)"
    assert without_withheld(found, [broken(Need.ROUTING)]) == found


def test_where_every_hint_falls_none_is_called_absent():
    run = open_run(DATA / "sparse-gmm-deepep-graphs")
    doubted = dataclasses.replace(run, trust=(*run.trust, broken(Need.COMPONENTS)))
    found = without_withheld(hinted(("ops", 9.0)), [broken(Need.COMPONENTS)])
    document = build(doubted, found)
    assert [m["value"] for m in document["analyses"]["hints"]["headline"]] == [None, None]
    assert withheld_by(document, "hints") == ["made"]
    assert "No known pattern" not in overview(document).plain
    assert top_findings(document).said == "Withheld: made failed."


def test_no_hint_of_a_withheld_answer_is_on_the_first_screen():
    run = open_run(DATA / "sparse-gmm-deepep-graphs")
    doubted = dataclasses.replace(
        run, trust=(*run.trust, broken(Need.COMPONENTS, Need.HOST_RECORD))
    )
    looks = analyze(doubted, ["hints"])["hints"].table["look"]
    assert not set(looks) & {"breakdown", "ops", "launch", "sync_gaps"}
