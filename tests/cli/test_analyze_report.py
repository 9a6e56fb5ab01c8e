"""The commands themselves; what they show is tested with the reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders.sessions import profile, write
from click.testing import CliRunner, Result

from moeprof.answers.document import Document
from moeprof.cli import analyze, findings, report
from moeprof.cli.main import group
from moeprof.errors import SpecError


def document(
    path: Path, *, verdict: str = "ok", check: str = "truncated", **law: object
) -> Document:
    return {
        "schema": "moeprof.analysis/1",
        "run": {
            "path": str(path), "platform": "cpu", "hosts": ["a"], "devices": 8,
            "jax_version": "0.10.2", "events": 5, "notes": [],
        },
        "trust": [{"check": check, "verdict": verdict, "detail": "5 events", **law}],
        "steps": [{"step": 1, "start_ns": 0, "duration_ns": 10, "used": True, "reason": None}],
        "analyses": {},
        "drawings": {},
    }  # fmt: skip


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch):
    """Let the commands read documents made by `make(path)`."""

    def use(make):
        monkeypatch.setattr(analyze, "read_hosts", lambda runs, *_, **__: make(runs[0]))
        monkeypatch.setattr(report, "read_document", lambda run, *_, **__: make(run))

    return use


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def test_json_is_the_document(tmp_path: Path, reads):
    reads(document)
    result = run("analyze", tmp_path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == document(tmp_path)
    assert result.stderr == ""


def test_text_says_what_was_read(tmp_path: Path, reads):
    reads(document)
    result = run("analyze", tmp_path)
    assert result.exit_code == 0
    assert "8 × cpu · jax 0.10.2 · 1 of 1 steps used" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_withheld_figures_end_with_3_and_a_warning_with_0(
    tmp_path: Path, reads, command, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    reads(lambda path: document(path, verdict="warn"))
    assert run(command, tmp_path).exit_code == 0
    reads(lambda path: document(path, verdict="fail", withholds=["ops"]))
    assert run(command, tmp_path).exit_code == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"verdict": "warn", "check": "resolved"}, False),
        ({"verdict": "warn", "check": "truncated"}, False),
        ({"verdict": "warn", "check": "truncated", "scopes": [{"question": "launch"}]}, True),
        ({"verdict": "fail", "withholds": ["ops"]}, True),
    ],
)
def test_only_withheld_figures_make_an_answer_partial(changes, expected):
    assert findings.is_partial(document(Path("run"), **changes)) is expected


def test_a_capture_that_ended_early_withholds_nothing_that_it_holds():
    made = document(Path("run"))
    made["run"]["record"] = {
        "command": None, "exit_code": 0, "window": None, "status": "partial", "problems": [],
    }  # fmt: skip
    assert not findings.is_partial(made)


def test_a_run_without_a_step_to_measure_is_partial():
    made = document(Path("run"))
    made["steps"] = []
    assert findings.is_partial(made)


def test_a_moeprof_error_is_for_main_to_print(tmp_path: Path, reads):
    def fail(path: Path) -> Document:
        raise SpecError("no analyzer is named 'x'")

    reads(fail)
    result = run("analyze", tmp_path)
    assert isinstance(result.exception, SpecError)


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_a_path_that_does_not_exist_is_a_usage_error(command):
    result = run(command, "absent")
    assert result.exit_code == 2
    assert "'absent' does not exist" in result.stderr


def test_report_without_a_run_is_a_usage_error():
    assert run("report").exit_code == 2


def test_report_goes_into_a_run_folder_that_capture_made(tmp_path: Path, reads):
    reads(document)
    (tmp_path / "meta.json").write_text('{"schema": "moeprof.run/1"}')
    result = run("report", tmp_path)
    assert result.stdout.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("name", ["vm-p0.xplane.pb", "meta.json", "page"])
def test_a_page_never_replaces_a_profile_or_a_record(tmp_path: Path, reads, name):
    reads(document)
    file = tmp_path / name
    file.write_bytes(b"precious")
    result = run("report", tmp_path, "-o", file)
    assert result.exit_code == 2
    assert "expected a name that ends in .html" in result.stderr
    assert file.read_bytes() == b"precious"


def test_nothing_is_written_beside_foreign_input(tmp_path: Path, reads, monkeypatch):
    reads(document)
    foreign, here = tmp_path / "foreign", tmp_path / "here"
    foreign.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    result = run("report", foreign)
    assert result.stdout.strip() == "moeprof-report.html"
    assert list(foreign.iterdir()) == []
    assert [path.name for path in here.iterdir()] == ["moeprof-report.html"]


def test_several_runs_give_one_page_outside_of_them(tmp_path: Path, reads, monkeypatch):
    reads(document)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text('{"schema": "moeprof.run/1"}')
    assert run("report", "a", "b").stdout.strip() == "moeprof-report.html"
    assert "2 runs compared" in (tmp_path / "moeprof-report.html").read_text()


def test_report_goes_where_it_is_told(tmp_path: Path, reads):
    reads(document)
    out = tmp_path / "page.html"
    assert run("report", tmp_path, "-o", out).stdout.strip() == str(out)
    assert out.is_file()


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_help_has_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(f"Examples?:\n\n      moeprof {command} runs/", result.stdout)


def test_the_help_says_that_a_json_trace_will_do():
    assert ".trace.json" in run("analyze", "--help").stdout


def test_a_json_file_without_a_trace_ends_with_exit_code_1(tmp_path: Path, monkeypatch, capsys):
    from moeprof.cli.main import main

    trace = tmp_path / "node.trace.json"
    trace.write_text("{}")
    monkeypatch.setattr("sys.argv", ["moeprof", "analyze", str(trace)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "expected a trace in JSON, found no event" in capsys.readouterr().err


def test_a_full_disk_is_one_line(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        return
    write(tmp_path / "h.xplane.pb", profile())
    for arguments in (["analyze", "h.xplane.pb"], ["analyze", "h.xplane.pb", "--json"]):
        with full.open("w") as nowhere:
            done = subprocess.run(
                [sys.executable, "-m", "moeprof", *arguments],
                cwd=tmp_path, stdout=nowhere, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr == (
            "moeprof: standard output: cannot be written (No space left on device)\n"
        )
