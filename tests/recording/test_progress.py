"""What the user is told while waiting; the clock is ours."""

from __future__ import annotations

import itertools

import pytest

from moeprof.recording.progress import HEARTBEAT_S, Progress

RECORDING = {
    "kind": "recording",
    "settled": True,
    "give_up_steps": 30,
    "first_step": 9,
    "steps": 3,
    "most_steps": 3,
    "counted_by": "calls of train_step",
}


@pytest.fixture
def lines():
    return []


@pytest.fixture
def progress(lines):
    return Progress(lines.append)


def test_a_slow_export_gives_a_sign_of_life_at_least_every_five_seconds(progress, lines):
    progress.on_message({"kind": "exporting"}, 100.0)
    said_at = [100.0]
    for tenth in range(1, 201):
        before = len(lines)
        progress.tick(100.0 + tenth / 10)
        said_at += [100.0 + tenth / 10] * (len(lines) - before)
    gaps = [later - earlier for earlier, later in itertools.pairwise(said_at)]
    assert max(gaps) <= HEARTBEAT_S + 0.1
    assert lines[-1] == "moeprof: exporting … 20 s"
    progress.on_message(
        {"kind": "exported", "size_bytes": 38 * 2**20, "duration_s": 20.04, "error": None}, 120.04
    )
    assert lines[-1] == "moeprof: exported 38.00 MiB in 20.0 s"
    progress.tick(200.0)
    assert len(lines) == 6  # exporting, four signs of life, exported


def test_compilation_that_takes_long_is_counted(progress, lines):
    progress.on_message({"kind": "imported", "versions": {"jax": "0.10.2"}}, 0.0)
    progress.on_message({"kind": "compiled", "programs": 3}, 11.0)
    progress.tick(9.0)
    assert lines == []
    progress.tick(12.0)
    assert lines == ["moeprof: waiting for compilation to settle … 12 s, 3 programs"]
    progress.on_message(RECORDING, 41.0)
    assert lines[1:] == [
        "moeprof: compilation settled: 41 s, 3 programs",
        "moeprof: recording 3 steps (9–11), counted by calls of train_step",
    ]
    progress.tick(1000.0)
    assert len(lines) == 3
    assert progress.versions == {"jax": "0.10.2"}


def test_compilation_that_never_settles_is_said(progress, lines):
    progress.on_message({**RECORDING, "settled": False, "steps": None}, 5.0)
    assert lines == [
        "moeprof: compilation did not settle in 30 steps: 0 s, 0 programs",
        "moeprof: recording from step 9, counted by calls of train_step",
    ]


def test_a_failed_export_says_why(progress, lines):
    progress.on_message({"kind": "exported", "duration_s": 1.25, "error": "OSError: full"}, 0.0)
    assert lines == ["moeprof: export failed after 1.2 s: OSError: full"]


def test_messages_of_an_unknown_kind_are_passed_over(progress, lines):
    progress.on_message({"kind": "weather"}, 0.0)
    progress.on_message({}, 0.0)
    assert lines == []


def test_only_the_first_window_tells_of_compilation(progress, lines):
    for first_step in (9, 109):
        progress.on_message({**RECORDING, "first_step": first_step}, 5.0)
    assert lines == [
        "moeprof: compilation settled: 0 s, 0 programs",
        "moeprof: recording 3 steps (9–11), counted by calls of train_step",
        "moeprof: recording 3 steps (109–111), counted by calls of train_step",
    ]


def test_a_window_is_unfinished_until_it_is_closed(progress):
    progress.on_message(RECORDING, 0)
    assert progress.unfinished == "inside the window"
    progress.on_message({"kind": "closed"}, 1)
    assert progress.unfinished == ""


def test_an_export_is_unfinished_until_it_is_done_or_given_up(progress):
    for end in (
        {"kind": "exported", "size_bytes": 1, "duration_s": 1.0, "error": None},
        {"kind": "given_up"},
    ):
        progress.on_message(RECORDING, 0)
        progress.on_message({"kind": "exporting"}, 1)
        assert progress.unfinished == "while the window was exported"
        progress.on_message(end, 2)
        assert progress.unfinished == ""


def test_where_a_script_profiles_itself_nothing_is_waited_for(progress, lines):
    progress.on_message({"kind": "imported", "versions": {}}, 0.0)
    progress.on_message({"kind": "note", "text": "moeprof steps aside"}, 5.0)
    progress.on_message({"kind": "stopped"}, 5.0)
    progress.tick(60.0)
    assert lines == ["moeprof: moeprof steps aside"]


@pytest.mark.parametrize(
    ("steps", "most", "why"),
    [(6, 8, "; 8 would take over 20 s"), (8, 8, ""), (3, None, ""), (None, None, "")],
)
def test_a_window_of_fewer_steps_than_it_may_hold_says_why(steps, most, why):
    lines: list[str] = []
    Progress(lines.append).on_message({**RECORDING, "steps": steps, "most_steps": most}, 5.0)
    assert lines[-1].endswith(f", counted by calls of train_step{why}")
