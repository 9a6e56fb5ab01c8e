"""The gate of a training repository's own tests, in a pytest of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import moeprof

pytest_plugins = ["pytester"]

ROOT = Path(moeprof.__file__).parent.parent
TEST = """
import jax, jax.numpy as jnp

def train():
    step = jax.jit(lambda w: w @ w * 1e-3)
    w = jnp.ones((64, 64))
    for _ in range(12):
        w = step(w)

def test_step(moeprof_gate):
    found = moeprof_gate(train, fail_on={fail_on!r}, steps=3)
    assert found is None or found.table is not None
"""


@pytest.fixture
def run_pytest(pytester, monkeypatch):
    """A pytest in a process, with this moeprof's plugin, whichever version is installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*arguments):
        return pytester.runpytest_subprocess("-p", "moeprof.pytest_plugin", "-rs", *arguments)

    return run


def test_a_kept_run_is_compared_and_a_limit_that_is_passed_fails_in_words(pytester, run_pytest):
    pytester.makepyfile(test_train=TEST.format(fail_on="step>+100000%"))
    kept = run_pytest("--moeprof-baseline", "kept", "--moeprof-update")
    kept.assert_outcomes(passed=1)
    assert (pytester.path / "kept" / "test_step" / "meta.json").is_file()
    run_pytest("--moeprof-baseline", "kept").assert_outcomes(passed=1)
    pytester.makepyfile(test_train=TEST.format(fail_on=["step>-99.9%"]))
    failed = run_pytest("--moeprof-baseline", "kept")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["failed step>-99.9%: *, allowed *", "moeprof compare *"])
    failed.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("arguments", "outcome", "line"),
    [
        ([], "skipped", "*moeprof_gate: no --moeprof-baseline DIR to compare with"),
        (["--moeprof-baseline", "kept"], "failed", "*expected a kept run, found none.*"),
        (
            ["--moeprof-baseline", "kept", "-o", "moeprof_fail_on=steps>5"],
            "failed",
            "*gate 'steps>5'*",
        ),
    ],
)
def test_what_is_lacking_is_said_in_one_line(pytester, run_pytest, arguments, outcome, line):
    pytester.makepyfile(test_train=TEST.format(fail_on=()))
    done = run_pytest(*arguments)
    done.assert_outcomes(**{outcome: 1})
    done.stdout.fnmatch_lines([line])


def test_a_script_that_fails_fails_the_test_with_what_it_said(pytester, run_pytest):
    pytester.makepyfile(train="import sys; sys.exit('no data')")
    pytester.makepyfile(test_train="def test_step(moeprof_gate):\n    moeprof_gate('train.py')")
    done = run_pytest("--moeprof-baseline", "kept", "--moeprof-update")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["train.py ended with 1:", "no data"])


def test_files_that_are_no_run_are_not_replaced(pytester, run_pytest):
    (pytester.path / "kept" / "test_step").mkdir(parents=True)
    pytester.makepyfile(test_train=TEST.format(fail_on=()))
    done = run_pytest("--moeprof-baseline", "kept", "--moeprof-update")
    done.stdout.fnmatch_lines(["*expected a kept run or nothing, found other files."])
    assert (pytester.path / "kept" / "test_step").is_dir()


def test_a_pytest_that_does_not_ask_imports_nothing_heavy():
    code = (
        "import sys, moeprof.pytest_plugin; "
        "print(sorted({'jax', 'pandas', 'numpy', 'plotly', 'click', 'rich'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_it_is_found_by_every_pytest_of_the_environment():
    """As the project says it: the entry point is what an installer reads."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"moeprof": "moeprof.pytest_plugin"}
    assert shutil.which("pytest", path=str(Path(sys.executable).parent))
