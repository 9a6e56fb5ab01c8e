"""What `import moeprof` gives: these names and no other, typed for users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import moeprof

NAMES = [
    *("Answer", "Comparison", "MemoryPlan", "MoeprofError", "PlanSearch", "Run", "StepPlan"),
    *("capture", "compare", "load", "memory", "plan", "routing", "search"),
]
SCRIPT = """
import moeprof

def slow(path: str) -> tuple[float, str]:
    try:
        run: moeprof.Run = moeprof.load(path, steps=3, hosts="node0")
    except moeprof.MoeprofError as error:
        raise SystemExit(str(error)) from None
    answer: moeprof.Answer = run.breakdown()
    answer.figure().show()
    print(answer.headline["op_time"], run.ask("hints").notes, run.trust.verdict, run.steps["used"])
    verdict: str = moeprof.compare(run, "new").check("step>+2%")["verdict"]
    with moeprof.capture("runs/base", steps=3, every=100) as recording:
        recording.step()
    found: moeprof.StepPlan = moeprof.plan(slow, path, mesh={"fsdp": 64}, donate_argnums=0)
    print(found.fits, found.peak_bytes, found.memory["bytes"], found.roofline.at_least_s)
    fits: bool | None = moeprof.memory("deepseek_v3", ep=64, pdbs=[1, 2]).fits
    best: moeprof.PlanSearch = moeprof.search("deepseek_v3", 64, what_if=True)
    print(fits, best.plans["seconds"].min())
    return float(answer.table["per_step_ns"].sum()), verdict
"""


def test_these_names_are_listed_and_no_other():
    assert dir(moeprof) == sorted([*NAMES, "__version__"])


@pytest.mark.parametrize("name", [*NAMES, "__version__"])
def test_each_name_is_there_and_documented(name):
    found = getattr(moeprof, name)
    assert name == "__version__" or found.__doc__


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'open'"):
        moeprof.open  # noqa: B018


@pytest.mark.parametrize(
    "name", ["Answer", "Comparison", "MemoryPlan", "PlanSearch", "Run", "StepPlan"]
)
def test_every_public_attribute_says_what_it_is(name):
    kind = getattr(moeprof, name)
    assert [key for key in vars(kind) if not key.startswith("_") and not vars(kind)[key].__doc__] \
        == []  # fmt: skip


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = "import moeprof, sys; print({'pandas', 'plotly', 'jax', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_script_of_a_user_is_typed(tmp_path: Path):
    (tmp_path / "user.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text('import moeprof\n\nmoeprof.lod("x")\n')
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    files = ["user.py", "wrong.py"]
    done = subprocess.run([*mypy, *files], capture_output=True, text=True, cwd=tmp_path)
    first, last = done.stdout.splitlines()
    assert (
        first == 'wrong.py:3: error: Module has no attribute "lod"; maybe "load"?  [attr-defined]'
    )
    assert last == "Found 1 error in 1 file (checked 2 source files)"
