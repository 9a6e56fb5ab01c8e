"""The gate that docs/gate.md describes: its commands are of this version, and they gate."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
import yaml

from moeprof.cli import main as command_line

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/gate.md").read_text()


def workflow():
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return yaml.safe_load(text)


def commands():
    """The words of each moeprof command of the recipe."""
    steps = workflow()["jobs"]["gate"]["steps"]
    lines = [step["run"] for step in steps if step.get("run", "").startswith("moeprof ")]
    return [shlex.split(line)[1:] for line in lines]


def test_the_recipe_records_then_compares():
    assert [words[0] for words in commands()] == ["capture", "compare"]


def test_every_option_of_the_recipe_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/kept", "runs/new"):
        (tmp_path / name).mkdir(parents=True)
    for words in commands():
        command = command_line.group.get_command(click.Context(command_line.group), words[0])
        command.make_context(words[0], words[1:])  # raises where it knows no such option


@pytest.mark.parametrize(("limit", "code"), [("step>+5%", 0), ("step>-5%", 4)])
def test_its_comparison_gates(tmp_path, monkeypatch, capsys, limit, code):
    """Two copies of one run: no change passes +5 %, and is no gain of 5 %."""
    run = tmp_path / "runs" / "kept"
    source = ROOT / "tests/data/warm_cache/warm.xplane.pb.gz"
    run.mkdir(parents=True)
    shutil.copy(source, run)
    shutil.copytree(run, tmp_path / "runs" / "new")
    monkeypatch.chdir(tmp_path)
    (words,) = [each for each in commands() if each[0] == "compare"]
    words = words[: words.index("--html")]
    monkeypatch.setattr("sys.argv", ["moeprof", *words, "--json", "--fail-on", limit])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert int(ended.value.code or 0) == code
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert gate["verdict"] == ("failed" if code else "passed")
