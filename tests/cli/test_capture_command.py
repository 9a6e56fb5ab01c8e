"""What `moeprof capture` refuses before it starts anything, and what it never refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders.report_cases import document
from click.testing import CliRunner
from recording.running import command_line, environment

from moeprof.cli import findings
from moeprof.cli.capture import command
from moeprof.recording import launch
from moeprof.recording.launch import Outcome


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('it ran')")
    return path


def captured(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(*arguments), capture_output=True, text=True, env=environment()
    )


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
    (tmp_path / "run-2").write_text("mine too")
    result = captured("--out", tmp_path / "run", script)
    assert result.returncode == 1  # of the script, which ran
    line = f"moeprof: {tmp_path / 'run'} has files in it: this run goes to {tmp_path / 'run-3'}\n"
    assert result.stderr.startswith(line)
    assert (tmp_path / "run-3" / "meta.json").is_file()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run-2").read_text() == "mine too"


def test_a_folder_that_cannot_be_made_stops_no_training(script, tmp_path):
    (tmp_path / "file").write_text("")
    done = captured("--out", tmp_path / "file" / "run", script)
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"moeprof: run folder {tmp_path / 'file' / 'run'} cannot be made: ")
    assert first.endswith(f"{script} runs unrecorded")
    assert second == "it ran"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_in_the_analysis_leaves_the_scripts_exit_code(tmp_path, signum):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    code = (
        "import os, time; from moeprof.cli import capture\n"
        "def late(*_):\n"
        f"    os.kill(os.getpid(), {int(signum)}); time.sleep(9)\n"
        "capture._tell_results = late\n"
        f"capture.command(['--out', {str(tmp_path / 'run')!r}, {str(script)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 7
    assert f"moeprof: {signum.name}: the analysis is left to `moeprof analyze " in done.stderr


def test_a_full_standard_output_leaves_the_scripts_exit_code(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    with open("/dev/full", "w") as full:
        command = command_line("--out", tmp_path / "run", script)
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment()
        )
    assert done.returncode == 7
    assert done.stderr.count("moeprof: standard output: cannot be written") == 1


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


def test_a_page_that_cannot_be_written_hides_no_summary(script, tmp_path, monkeypatch):
    """As on a disk that is full by then."""
    run = tmp_path / "run"
    meta = {"status": "complete", "processes": [{}], "expected_processes": 1}

    def recorded(*_: object) -> Outcome:
        (run / "report.html").mkdir(parents=True)
        return Outcome(0, 0, meta)

    monkeypatch.setattr(launch, "run_script", recorded)
    monkeypatch.setattr(findings, "read_document", lambda *of, **also: document())
    result = CliRunner().invoke(command, ["--out", str(run), str(script)])
    assert result.exit_code == 0
    assert "\nTrust  " in result.stdout
    assert result.stdout.endswith(f"\nRun  {run}\n")
    assert result.stderr.count("expected a place that can be written") == 1
    assert f"Give another one with `moeprof report {run} -o`" in result.stderr
