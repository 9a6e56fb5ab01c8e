"""The measurements on GPUs run through, tiny, on two virtual devices: no GPU is needed for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from builders import quick

from .conftest import BENCHMARKS


def run(name: str, *options: str, out) -> dict:
    """One program as its own process; its result file."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {quick.flags()}",
    }
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke", *options]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, env=environment, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


def test_grouped_gemm(tmp_path):
    found = run("gpu/grouped_gemm", "--samples", "3", "--limit-s", "0.1", out=tmp_path / "r.json")
    assert [(row["case"], row["pass"]) for row in found["rows"]] == [
        (case, which) for case in ("smoke", "smoke_zipf") for which in ("forward", "dA", "dB")
    ]
    for row in found["rows"]:
        assert row["relative_error"] < 4e-3
        assert set(row["timings"]) == {"moeprof", "dense_jax", "ragged_dot"}
        assert row["failed"] == {}


def test_exchange(tmp_path):
    options = ("--samples", "3", "--repetitions", "2", "--limit-s", "0.1")
    found = run("gpu/exchange", *options, out=tmp_path / "r.json")
    (load,) = found["loads"]
    names = {row["op"] for row in load["ops"]}
    assert {"moe_dispatch", "spread_rows", "moe_combine", "ppermute"} <= names
    assert {"step: moe_dispatch, moe_combine", "step: all_to_all: tokens"} <= names
    assert all("ragged" in name for name in load["failed"])  # XLA:CPU has none


def test_exchange_in_one_process(tmp_path):
    (row,) = run("gpu/exchange_processes", out=tmp_path / "r.json")["rows"]
    assert (row["mode"], row["tokens"]) == ("INPROC", 32)


@pytest.mark.parametrize("strategy", ["sparse-gmm-deepep"])
def test_strategies(tmp_path, strategy):
    options = ("--strategy", strategy, "--only-common", "--case-limit-s", "450")
    found = run("gpu/ab", *options, out=tmp_path / "r.json")
    synthetic, text = found["strategies"][strategy]["runs"]
    assert (synthetic["data"], text["data"]) == ("synthetic", "text")
    for row in (synthetic, text):
        assert row["steps"] == 10
        assert 5 < row["loss"] < 6.5  # of 256 tokens: log 256 = 5.55
        assert row["busiest_expert_over_mean"] >= 1


def test_convergence(tmp_path):
    options = ["--strategy", "sparse-gmm", "--strategy", "sparse-gmm-deepep", "--set", "seeds=1"]
    options += ["--router", "balanced"]
    found = run("gpu/convergence", *options, out=tmp_path / "r.json")
    by_strategy = {run["strategy"]: run for run in found["runs"]}
    split, exchanged = by_strategy["sparse-gmm"], by_strategy["sparse-gmm-deepep"]
    assert split["first_loss"] == pytest.approx(exchanged["first_loss"], abs=1e-5)
    assert split["final_loss"] == pytest.approx(exchanged["final_loss"], abs=1e-3)
    assert split["held_out"] == split["held_out_dropless"]
    assert split["dropped"]["all"] == exchanged["dropped"]["all"] == 0
    assert [row["verdict"] for row in found["order"]] == ["one seed"] * 3
