"""The law of tokens, on routing of 2 layers, 3 experts on 3 ranks, 2 steps, 30 pairs a layer."""

import dataclasses

import numpy as np
import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.laws.figures import tokens
from moeprof.tables.law import Need
from moeprof.tables.routing import RECEIVED, ROUTING

COUNTS = np.array([[[20, 10, 0], [5, 5, 20]], [[10, 10, 10], [30, 0, 0]]])
GEMM = hlo("up", "custom-call", custom_call_target="moeprof_grouped_gemm")
ROWS = [
    {"step": s + 6, "layer": n + 1, "expert": e, "rank": e, "tokens": int(COUNTS[s, n, e])}
    for s, n, e in np.ndindex(COUNTS.shape)
]


def law(rows=ROWS, received=()):
    trace = traced([kernel("up", 100 * s, 50, step=s) for s in (6, 7)], (GEMM,))
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    frames = {"routing": ROUTING.frame(rows), "received": RECEIVED.frame(list(received))}
    return tokens(dataclasses.replace(trace, meta=meta, **frames))


def rows_of(*rows, step=6, layer=1):
    return [
        {"step": step, "layer": layer, "group": 0, "rank": rank, "rows": count}
        for rank, count in enumerate(rows)
    ]


def test_as_many_pairs_in_every_layer_are_good():
    found = law(received=rows_of(20, 10, 0))
    assert (found.verdict, found.expected, found.found) == ("ok", 120, 120)
    assert not found.withholds_any


def test_without_routing_nothing_was_checked():
    assert law([]).verdict == "unchecked"
    assert law([], rows_of(3, 1)).verdict == "unchecked"


@pytest.mark.parametrize("again", [ROWS, ROWS[4:6]])
def test_counts_of_two_processes_are_no_load(again):
    found = law([*ROWS, *again])
    assert (found.verdict, found.expected, found.found) == ("fail", 12, 12 + len(again))
    assert found.breaks == (Need.ROUTING,)


def test_counts_that_are_missing_are_named():
    found = law(ROWS[:7] + ROWS[8:])
    assert (found.verdict, found.expected, found.found) == ("fail", 12, 11)
    assert "1 of 12 counts" in found.detail


def test_a_step_that_is_not_used_may_be_incomplete():
    assert law([*ROWS, {**ROWS[0], "step": 8}]).verdict == "ok"


def test_nobody_receives_more_than_was_sent_there():
    found = law(received=rows_of(20, 11, 0))
    assert (found.verdict, found.expected, found.found, found.unit) == ("fail", 10, 11, "rows")
    assert "rank 1 received 11 rows in layer 1 of step 6" in found.detail
    assert found.breaks == (Need.ROUTING, Need.RECEIVED)


def test_layers_that_differ_are_told_and_nothing_is_withheld():
    found = law([*ROWS[:-1], {**ROWS[-1], "tokens": 4}])
    assert (found.verdict, found.expected, found.found) == ("warn", 34, 30)
    assert not found.withholds_any
