"""docs/python.md: its examples run and print what it shows, and it leaves no public name out."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import moeprof

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"
_SCRIPT = re.compile(r"```python\n((?!>>>).*?)```\n", re.DOTALL)
NAMED = (
    *("moeprof.load(", "moeprof.compare(", "moeprof.capture(", "moeprof.routing.record("),
    *("moeprof.MoeprofError", "run.ask(", "run.breakdown()", "run.trust", "run.steps"),
    *("run.report(", "run.to_json()", "run.questions", "answer.table", "answer.units"),
    *("answer.meanings", "answer.headline", ".notes", ".status", "answer.basis", ".figure()"),
    *(".figures", ".check(", "steps=3", "hosts=", "moeprof.plan("),
)


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_its_examples_print_what_it_shows(page):
    written = runpy.run_path(str(ROOT / "docs" / "write_python.py"))["written"]
    assert written(page) == page, "run: python docs/write_python.py"


@pytest.mark.parametrize("name", NAMED)
def test_each_name_has_an_example(page, name):
    code = "".join(re.findall(r"```python\n(.*?)```\n", page, re.DOTALL))
    assert name in code


def test_the_lines_of_the_readme_run(tmp_path, monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"### From Python\n\n```python\n(.*?)```\n", readme, re.DOTALL)
    (tmp_path / "runs").mkdir()
    for name, capture in (("base", "sparse-gmm"), ("new", "sparse-gmm-deepep")):
        (tmp_path / "runs" / name).symlink_to(ROOT / "tests" / "data" / "gpu" / capture)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    said = capsys.readouterr().out
    trust, time = said.splitlines()[:2]
    assert trust.startswith("good: 35 of 35 checks passed, 3 could not be checked (routing ")
    assert time.startswith("Time per step: ")
    assert names["verdict"] == "passed"
    assert "Plotly.newPlot" in (tmp_path / "breakdown.html").read_text(encoding="utf-8")


def test_training_that_records_itself_leaves_a_run_with_its_routing(page, tmp_path):
    (script,) = (found for found in _SCRIPT.findall(page) if "moeprof.capture(" in found)
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run folder" in done.stderr
    assert "experts without a token: 7" in done.stdout
    run = moeprof.load(tmp_path / "runs" / "tiny")
    assert run.steps["used"].sum() == 3
