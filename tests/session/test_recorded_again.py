"""A run whose job was started again: commands and Python read the same recording, and say so."""

from __future__ import annotations

import json

import pytest
from builders.sessions import profile, write
from click.testing import CliRunner

import moeprof
from moeprof.assistant.place import OpenRuns
from moeprof.cli.main import group
from moeprof.ingest import open_run
from moeprof.recording.run_folder import claim_free


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run`` with 3 steps, and ``run-2`` with 5, which was sent to ``run`` too."""
    monkeypatch.chdir(tmp_path)
    for steps in (3, 5):
        folder = claim_free(tmp_path / "run", {}, lambda line: None)
        file = folder / "plugins" / "profile" / folder.name / "node-p0.xplane.pb"
        write(file, profile((0, 10**9), steps=steps))
    return tmp_path / "run"


def said(*words: object) -> tuple[str, str]:
    done = CliRunner().invoke(group, [str(word) for word in words])
    return done.stdout, done.stderr


def test_python_reads_what_the_commands_read(run):
    opened = moeprof.load("run")
    assert opened.path == json.loads(said("analyze", "run", "--json")[0])["run"]["path"] == "run-2"
    assert opened.path == str(open_run("run").meta.path)
    assert len(opened.steps) == 5
    note = "run was recorded again: read run-2, the newest; session run is the first"
    assert note in opened.notes
    assert note in " ".join(str(opened).split())
    first = moeprof.load("run", session="run")
    assert (first.path, len(first.steps)) == ("run", 3)
    assert not any("recorded again" in each for each in first.notes)


def test_a_comparison_reads_the_newest_unless_both_are_named(run, tmp_path):
    other = write(tmp_path / "other.xplane.pb", profile((0, 10**9)))

    def paths(*words: object) -> tuple[list[str], str]:
        out, told = said("compare", *words, "--json")
        document = json.loads(out)
        return [document[side]["run"]["path"] for side in ("base", "new")], told

    told = "moeprof: run was recorded again: read run-2, the newest; --new-session run reads"
    assert paths(other, "run")[0] == [str(other), "run-2"]
    assert paths(other, "run")[1].startswith(told)
    assert paths("run", "run-2") == (["run", "run-2"], "")
    assert paths("run", other, "--base-session", "run") == (["run", str(other)], "")
    assert "comparison of 'run' with 'run-2'" in repr(moeprof.compare("run", "run-2"))
    assert "comparison of 'run-2' with" in repr(moeprof.compare("run", other))


@pytest.mark.parametrize(
    "words",
    [
        ("report", "run", "-o", "page.html"),
        ("export", "run", "--tables", "tables"),
        ("replay", "run", "--op", "add", "-o", "add.py", "--no-run"),
        ("pipeline", "--run", "run"),
        ("memory", "diff", "run", "tables"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_says_which_it_reads(run, words):
    assert "moeprof: run was recorded again: read run-2, the newest" in said(*words)[1]


def test_a_page_of_both_has_both(run):
    assert said("report", "run", "run-2", "-o", "page.html")[1] == ""


def test_an_assistant_reads_it_too_and_again_when_it_changed(run, tmp_path):
    runs = OpenRuns(tmp_path)
    assert len(runs.run("run").run.steps) == 5
    file = tmp_path / "run-2" / "plugins" / "profile" / "run-2" / "node-p0.xplane.pb"
    write(file, profile((0, 10**9), steps=7))
    assert len(runs.run("run").run.steps) == 7
