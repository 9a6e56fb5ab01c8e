"""The base install holds with the oldest versions that pyproject.toml allows, answers unchanged.

A bound that nobody installs is a guess: pandas 3.0 gave columns other types than 3.1, and click 8.1
and pyarrow 18 lacked what is used of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
RUNS = ("tests/data/gpu/sparse-gmm", "tests/data/torch/ranks")

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="the oldest numpy has no wheel for this Python"
)


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the oldest version of each package that the base install needs."""
    folder = tmp_path_factory.mktemp("oldest")
    versions = [need.replace(">=", "==") for need in NEEDS]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*pip, "--target", str(folder), *versions], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def moeprof(paths: list[Path], *words: str) -> str:
    """What the command prints where Python looks in `paths` before this environment's packages."""
    code = "import sys; from moeprof.cli.main import main; main()"
    purelib = sysconfig.get_path("purelib")
    path = os.pathsep.join(map(str, [*paths, ROOT, purelib]))
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    return done.stdout


def test_every_bound_is_a_version():
    assert [need for need in NEEDS if need.count(">=") != 1] == []


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_answered_alike(oldest, run):
    words = ("analyze", run, "--json")
    assert json.loads(moeprof([oldest], *words)) == json.loads(moeprof([], *words))


def test_tables_page_and_projection_are_made(oldest, tmp_path):
    tables = tmp_path / "tables"
    moeprof([oldest], "export", RUNS[0], "--tables", str(tables))
    stored = json.loads(moeprof([oldest], "analyze", str(tables), "--json"))
    assert stored["analyses"] == json.loads(moeprof([], "analyze", RUNS[0], "--json"))["analyses"]
    moeprof([oldest], "report", RUNS[0], "--out", str(tmp_path / "page.html"))
    assert "plotly" in (tmp_path / "page.html").read_text()
    words = ("memory", "--model", "deepseek_v3", "--ep", "64", "--json")
    assert json.loads(moeprof([oldest], *words)) == json.loads(moeprof([], *words))
