"""What is stated of versions in several places is stated alike."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import moeprof

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOX = ast.parse((ROOT / "noxfile.py").read_text())


def constant(name: str) -> object:
    """A constant of noxfile.py, which is read without nox."""
    (found,) = [
        node.value
        for node in NOX.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    ]
    return ast.literal_eval(found)


def test_nox_tests_the_oldest_jax_and_python_that_are_allowed():
    (jax,) = [need for need in PROJECT["optional-dependencies"]["jax"] if need.startswith("jax")]
    assert f"{jax.removeprefix('jax>=')}.0" == constant("OLDEST_JAX")
    assert PROJECT["requires-python"] == f">={constant('PYTHONS')[0]}"
    assert constant("PYTHONS") == ("3.11", "3.12", "3.13")


def test_every_test_that_depends_on_jax_is_there_and_both_runners_read_the_list():
    lines = (ROOT / "tests/depends_on_jax.txt").read_text().splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert [line for line in listed if not (ROOT / line.partition("::")[0]).exists()] == []
    printed = "print: ; @echo $(NEWEST_TESTS)"
    made = subprocess.run(
        ["make", "-s", "-f", "Makefile", "--eval", printed, "print"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert made.stdout.split() == listed


def test_the_extra_that_users_look_for_brings_what_the_other_name_brings():
    extras = PROJECT["optional-dependencies"]
    assert set(extras["xprof"]) < set(extras["tensorboard"])
    assert any(need.startswith("tensorboard-plugin-profile") for need in extras["tensorboard"])


def test_the_changelog_has_the_version_and_what_is_not_released():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert moeprof.__version__ == PROJECT["version"]
    assert headings[1:] == [] or headings[1] == moeprof.__version__
