"""Runs stay open between calls, two at most; what is replaced or has changed is freed."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
from builders.sessions import profile, write

from moeprof.assistant.place import MOST_OPEN, OpenRuns


@pytest.fixture
def runs(tmp_path):
    for name in "abc":
        write(tmp_path / f"{name}.xplane.pb", profile(steps=3))
    return OpenRuns(tmp_path.resolve())


def is_freed(reference: weakref.ref) -> bool:
    gc.collect()
    return reference() is None


def test_a_run_is_read_once(runs):
    assert runs.run("a.xplane.pb") is runs.run("./a.xplane.pb")
    first = runs.run("a.xplane.pb").document("step_time")
    assert runs.run("a.xplane.pb").document("step_time") is first


def test_the_run_that_was_asked_longest_ago_is_freed(runs):
    assert MOST_OPEN == 2
    a = runs.run("a.xplane.pb")
    b = weakref.ref(runs.run("b.xplane.pb").run.trace)
    runs.run("a.xplane.pb")
    runs.run("c.xplane.pb")
    assert is_freed(b)
    assert runs.run("a.xplane.pb") is a


def test_a_run_that_has_changed_is_read_again(runs):
    first = weakref.ref(runs.run("a.xplane.pb").run)
    file = runs.root / "a.xplane.pb"
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 1))
    runs.run("a.xplane.pb")
    assert is_freed(first)


def test_a_comparison_is_kept_until_a_run_of_it_is_freed(runs):
    found = weakref.ref(runs.comparison("a.xplane.pb", "b.xplane.pb"))
    assert runs.comparison("a.xplane.pb", "b.xplane.pb") is found()
    a = weakref.ref(runs.run("a.xplane.pb").run.trace)
    runs.run("b.xplane.pb")
    runs.run("c.xplane.pb")
    assert is_freed(found)
    assert is_freed(a)


def test_a_comparison_keeps_both_of_its_runs(runs):
    a = runs.run("a.xplane.pb")
    b = runs.run("b.xplane.pb")
    runs.comparison("c.xplane.pb", "a.xplane.pb")
    assert runs.run("a.xplane.pb") is a
    assert runs.run("b.xplane.pb") is not b


def test_a_run_may_be_compared_with_itself(runs):
    assert runs.comparison("a.xplane.pb", "a.xplane.pb").is_whole in (True, False)
