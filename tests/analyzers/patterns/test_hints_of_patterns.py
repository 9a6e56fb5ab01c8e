"""The hints of a trace: their order, their shares, and what is said where there are none."""

import dataclasses

from builders.work import RECOMPUTED, exchanged, traced

from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.hints import hints
from moeprof.analyzers.registry import all_patterns


def test_hints_are_ordered_by_gain_and_say_what_was_looked_for():
    found = hints(exchanged(RECOMPUTED))
    assert found.table["hint"].tolist() == ["exposed_exchange", "recomputed_exchange"]
    assert found.table["gain_share"].tolist() == [0.7, 0.7]
    assert [(m.metric, m.value) for m in found.headline] == [("hints", 2), ("largest_gain", 700)]
    assert all(name in found.notes[0] for name in (each.name for each in all_patterns()))


def test_gains_of_memory_alone_come_before_gains_that_are_not_known(monkeypatch):
    gains = {"a": (None, None), "b": (None, 10), "c": (50, None), "d": (None, 20), "e": (60, None)}
    hinted = {name: Hint("", "", "", *gain) for name, gain in gains.items()}
    shown = tuple(Pattern(name, "", 1, lambda _, name=name: hinted[name]) for name in gains)
    monkeypatch.setattr("moeprof.analyzers.questions.hints.all_patterns", lambda: shown)
    assert hints(exchanged(RECOMPUTED)).table["hint"].tolist() == ["e", "c", "d", "b", "a"]


def test_without_a_step_nothing_is_said_of_one():
    """Sums are then of the whole capture, which is no step."""
    cut = exchanged(RECOMPUTED)
    found = hints(dataclasses.replace(cut, steps=cut.steps.assign(used=False))).table
    assert found["gain_ns"].tolist() == [700, 700]
    assert found["gain_share"].isna().all()
    assert found["evidence"].str.contains("700 ns in the capture").all()
    assert not found["evidence"].str.contains("step").any()


def test_nothing_to_say_of_a_trace_without_work():
    found = hints(traced(()))
    assert found.table.empty
    assert found.headline[0].value == 0
