"""Three problems planted in an ordinary training script are what its run is said to have."""

from __future__ import annotations

import pytest

from moeprof.analyzers import analyze
from moeprof.ingest import open_run

from .running import CAPTURE, EXAMPLES, run_python

RANKS, EXPERTS, TOP_K, TOKENS = 8, 32, 2, 64
"""The script's own; tokens are those of one rank."""
LATE, PASSES = 3, 200


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("planted") / "run"
    small = ("--layers", "1", "--late-rank", str(LATE), "--late-passes", str(PASSES))
    run = run_python(*CAPTURE, "--out", run_dir, EXAMPLES / "planted_faults.py", *small)
    assert run.returncode == 0, run.stderr
    return open_run(run_dir)


@pytest.fixture(scope="module")
def findings(trace):
    return analyze(trace, ("hints", "stragglers", "grouped_gemm", "receive_buffers"))


def test_the_planted_problems_are_among_the_hints(findings):
    """Which saves most, the load of the machine decides too."""
    found = set(findings["hints"].table["hint"])
    assert found >= {"late_rank", "dense_ragged_dot", "worst_case_buffers"}


def test_the_late_rank_is_the_one_that_was_made_late(findings, trace):
    first = findings["stragglers"].table.iloc[0]
    assert first["rank"] == LATE
    (evidence,) = _hint(findings, "late_rank")["evidence"]
    assert f" for rank {LATE}, mostly in collectives that carry " in evidence
    # its passes run in the program's only loop
    loop = trace.hlo_ops[trace.hlo_ops["op_name"].astype("str").str.contains("/while/body/")]
    used = trace.steps["step"][trace.steps["used"]]
    passes = trace.events[trace.events["op"].isin(loop["op"]) & trace.events["step"].isin(used)]
    runs = passes.groupby([passes["op"].astype("str"), "step", "device"]).size()
    assert {device: set(of_one) for device, of_one in runs.groupby("device")} == {
        rank: {PASSES if rank == LATE else 1} for rank in range(RANKS)
    }


def test_each_row_meets_the_matrices_of_all_local_experts(findings):
    table = findings["grouped_gemm"].table
    dense = table[table["form"].eq("dense fallback")]
    assert set(dense["groups"]) == {EXPERTS // RANKS}
    assert dense["excess"].to_numpy() == pytest.approx(EXPERTS // RANKS)
    (gain_ns,) = _hint(findings, "dense_ragged_dot")["gain_ns"]
    # rows without tokens and the masked copies may be saved beside other experts' matrices
    assert gain_ns > dense["per_step_ns"].sum() * (1 - RANKS / EXPERTS)


def test_receive_buffers_have_room_for_all_tokens_and_hold_an_even_share(findings):
    table = findings["receive_buffers"].table
    worst = RANKS * TOKENS * min(TOP_K, EXPERTS // RANKS)
    assert set(table["worst_rows"]) == {worst}
    # no token is dropped, so that ranks receive TOKENS * TOP_K rows in the mean
    known = table["utilisation"].dropna()
    assert len(known)
    assert known.to_numpy() == pytest.approx(TOKENS * TOP_K / worst)


def _hint(findings, name):
    table = findings["hints"].table
    return table[table["hint"] == name]
