"""The script cannot tell that it is captured: plain Python is the oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import moeprof

from .running import ENTRY, SCRIPTS, environment

ENDINGS = {
    "returns": 0,
    "exits_none": 0,
    "exits_3": 3,
    "exits_text": 1,
    "raises": 1,
    "interrupts": 130,  # 128 + SIGINT, as a shell says it
    "leaves_at_once": 7,
    "killed": 137,
    "terminated": 143,
}


def plain(*target: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *target],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
        env=environment(),
        timeout=120,
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_output_and_exit_code_are_those_of_plain_python(capture, ending):
    expected = plain("endings.py", ending)
    run = capture("endings.py", ending)
    assert run.exit_code == ENDINGS[ending]
    assert expected.returncode in (run.exit_code, 128 - run.exit_code)
    assert run.stdout.splitlines()[0] == expected.stdout.strip() == "before the end"
    assert run.own_stderr == expected.stderr
    assert run.meta["exit_code"] == run.exit_code
    assert run.meta["status"] == "empty"
    assert "did not import jax" in run.process["problems"][0]


@pytest.mark.parametrize("target", [("about_itself.py",), ("-m", "trainer.train")])
def test_a_script_sees_what_it_sees_under_plain_python(capture, target):
    arguments = ("--lr", "1e-3", "--", "-m")
    expected = json.loads(plain(*target, *arguments, stdin="a line\n").stdout)
    run = capture(*target, *arguments, stdin="a line\n")
    got = json.loads(run.stdout.rpartition("Run  ")[0])
    for about in (got["environment"], got["environment_of_a_program_it_starts"]):
        assert about.pop("MOEPROF_RUN_DIR") == str(run.run_dir)  # where routing is written
        assert about.pop("MOEPROF_RECORDING") == run.process["recording"]  # which it bears
    assert got == expected
    assert got["stdin"] == "a line\n"
    assert got["spawned"] == [4, "__mp_main__"]
    assert run.own_stderr == ""


def test_the_environments_own_sitecustomize_still_runs(capture, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('customised', __name__, __file__)")
    path = environment()["PYTHONPATH"] + os.pathsep + str(tmp_path)
    run = capture("endings.py", "returns", env={"PYTHONPATH": path})
    # moeprof's own interpreter prints it once, the script's once more
    customised = f"customised sitecustomize {tmp_path / 'sitecustomize.py'}"
    assert run.stdout.splitlines()[:3] == [customised, customised, "before the end"]
    assert run.own_stderr == ""


def test_the_child_finds_moeprof_where_only_its_parent_has_it_on_the_path(tmp_path):
    root = Path(moeprof.__file__).parent.parent
    code = f"import sys; sys.path.insert(0, {str(root)!r}); {ENTRY}"
    without_path = environment()
    del without_path["PYTHONPATH"]
    options = ["--no-report", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, "capture", *options, "endings.py", "exits_3"],
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
        env=without_path,
    )
    assert done.returncode == 3
    assert done.stdout.startswith("before the end\n")
    assert "Error in sitecustomize" not in done.stderr
