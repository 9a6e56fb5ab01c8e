"""A script that knows nothing of moeprof is captured and understood."""

from __future__ import annotations

from moeprof.analyzers import analyze
from moeprof.ingest import open_run

from .running import CAPTURE, EXAMPLES, run_python

SCRIPT = EXAMPLES / "third_party_moe.py"


def test_the_script_does_not_know_moeprof():
    code = SCRIPT.read_text().split('"""', 2)[2]
    for word in ("moeprof", "named_scope", "annotat", "profiler"):
        assert word not in code.lower()


def test_less_than_a_tenth_of_its_step_stays_without_a_part(tmp_path):
    mesh = ("--data", "2", "--expert", "2")
    run = run_python(*CAPTURE, "--out", tmp_path / "run", SCRIPT, "--steps", "10", *mesh)
    assert run.returncode == 0, run.stderr
    trace = open_run(tmp_path / "run")
    found = {m.metric: m.value for m in analyze(trace, ["breakdown"])["breakdown"].headline}
    assert found["steps_used"] == 3
    assert found["unattributed_share"] + found["other_share"] < 0.10
    assert found["moe_share"] > 0.25
