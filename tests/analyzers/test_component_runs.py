"""Runs of one component on a stream, worked by hand."""

from __future__ import annotations

import pytest
from builders.work import kernel, traced

from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.reports.perfetto.work import component_runs


def runs(*events) -> list[tuple]:
    """(stream, component, start, end, pieces, self time) of each run."""
    table = component_runs(traced(events))
    columns = ("line", "component", "start_ns", "end_ns", "pieces", "self_ns")
    return list(zip(*(table[name].tolist() for name in columns), strict=True))


def copy(start_ns: int, duration_ns: int, **more: object):
    return kernel("", start_ns, duration_ns, name="MemcpyD2D", kind="copy", **more)


def work(start_ns: int, duration_ns: int, **more: object):
    return kernel("", start_ns, duration_ns, name="k", **more)


def test_pieces_of_one_component_are_one_run_until_another_begins():
    assert runs(work(0, 10), work(15, 10), copy(30, 5), work(40, 5)) == [
        ("1", "unattributed", 0, 25, 2, 20),
        ("1", "copies", 30, 35, 1, 5),
        ("1", "unattributed", 40, 45, 1, 5),
    ]


@pytest.mark.parametrize(("pause", "count"), [(SHORT_NS, 1), (SHORT_NS + 1, 2)])
def test_a_standstill_ends_a_run(pause, count):
    assert len(runs(work(0, 10), work(10 + pause, 10))) == count


def test_each_stream_and_each_step_has_runs_of_its_own():
    assert runs(work(0, 10), work(5, 10, line="2"), work(10, 10), work(20, 10, step=1)) == [
        ("1", "unattributed", 0, 20, 2, 20),
        ("1", "unattributed", 20, 30, 1, 10),
        ("2", "unattributed", 5, 15, 1, 10),
    ]


def test_a_loop_lies_around_the_runs_of_its_body_and_breaks_none():
    loop = work(0, 100, self_ns=40)
    assert runs(loop, copy(10, 20), copy(40, 40)) == [
        ("1", "unattributed", 0, 100, 1, 40),
        ("1", "copies", 10, 80, 2, 60),
    ]


def test_waits_are_no_work():
    assert runs(kernel("", 0, 50, name="wait", kind="sync", self_ns=0)) == []
