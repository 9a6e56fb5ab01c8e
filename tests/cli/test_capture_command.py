"""What `moeprof capture` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from moeprof.cli import findings
from moeprof.cli.capture import command
from moeprof.errors import CaptureError
from moeprof.recording import launch
from moeprof.recording.launch import Outcome


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('it ran')")
    return path


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--option", "gpu_max_anotation_strings=5"], "did you mean 'gpu_max_annotation_strings'?"),
        (["--option", "host_tracer_level=7"], "expected 0 to 3, found 7"),
        (["--option", "host_tracer_level"], "expected KEY=VALUE"),
        (["--steps", "5", "--every", "5"], "expected more than --steps 5, found 5"),
        (["--hosts", "0,x"], "expected process indices"),
        (["--steps", "0"], "0 is not in the range"),
    ],
)
def test_a_wrong_option_ends_with_2_before_the_script_starts(script, tmp_path, arguments, text):
    out = tmp_path / "run"
    result = CliRunner().invoke(command, [*arguments, "--out", str(out), str(script)])
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())
    assert not out.exists()


def test_a_script_that_is_not_there_ends_with_2(tmp_path):
    result = CliRunner().invoke(command, [str(tmp_path / "nothing.py")])
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_a_folder_with_files_in_it_is_never_overwritten(script, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    result = CliRunner().invoke(command, ["--out", str(tmp_path / "run"), str(script)])
    assert isinstance(result.exception, CaptureError)
    assert "expected none or an empty one, found files" in str(result.exception)


def test_a_failing_analysis_leaves_the_scripts_exit_code(script, tmp_path, monkeypatch):
    meta = {"status": "complete", "processes": [{}], "expected_processes": 1}
    monkeypatch.setattr(launch, "run_script", lambda *arguments: Outcome(7, 0, meta))

    def fail(run: Path, **asked: object) -> None:
        raise KeyError("no such column")

    monkeypatch.setattr(findings, "read_document", fail)
    result = CliRunner().invoke(command, ["--out", str(tmp_path / "run"), str(script)])
    assert result.exit_code == 7
    assert "moeprof: analysis failed: KeyError: 'no such column'" in result.stderr
    assert result.stdout == f"Run  {tmp_path / 'run'}\n"
