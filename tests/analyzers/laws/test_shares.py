"""A share that cannot be one is withheld, and a law names it."""

import pandas as pd

from moeprof.analyzers import without_withheld
from moeprof.analyzers.laws.figures import shares
from moeprof.analyzers.questions.hints import SCHEMA as HINTS
from moeprof.reports.run.document import finding_of
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.law import Scope
from moeprof.tables.schema import Schema

EMPTY = Schema("s", ())


def answer(name, **values):
    metrics = tuple(Metric(metric, value, "share") for metric, value in values.items())
    return Analysis(name, "?", metrics, EMPTY, pd.DataFrame())


def test_shares_between_none_and_all_are_good():
    law = shares({"a": answer("a", idle_share=0.0, busy_share=1.0, missing=None)})
    assert (law.verdict, law.expected, law.found) == ("ok", 2, 2)


def test_a_share_above_all_is_named_and_withheld_alone():
    findings = {"collectives": answer("collectives", wait_share=17.011, busy_share=0.5)}
    law = shares(findings)
    assert (law.verdict, law.expected, law.found) == ("fail", 2, 1)
    assert "wait_share of collectives is 1701.1%" in law.detail
    assert law.scopes == (Scope("collectives", ("wait_share",)),)
    shown = finding_of(without_withheld(findings, (law,))["collectives"])
    assert shown["headline"][0] == {
        "metric": "wait_share", "value": None, "unit": "share", "withheld": "shares",
    }  # fmt: skip
    assert shown["headline"][1]["value"] == 0.5


def test_a_share_below_none_cannot_be_either():
    assert shares({"a": answer("a", idle_share=-0.2)}).verdict == "fail"


def test_without_a_share_nothing_is_checked():
    assert shares({"a": answer("a", idle_share=None)}).verdict == "unchecked"


def test_a_gain_above_the_step_is_withheld_with_what_is_taken_from_it():
    table = HINTS.frame(
        [{"hint": "dense_ragged_dot", "gain_ns": 350e6, "gain_share": 1.46, "gain_bytes": 8.0}]
    )
    findings = {"hints": Analysis("hints", "?", (), HINTS, table)}
    law = shares(findings)
    assert (law.verdict, law.expected, law.found) == ("fail", 1, 0)
    assert "gain_share of hints is 146.0%" in law.detail
    row = finding_of(without_withheld(findings, (law,))["hints"])["rows"][0]
    assert (row["gain_ns"], row["gain_share"], row["gain_bytes"]) == (None, None, 8)
