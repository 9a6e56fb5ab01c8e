"""MaxText on two H100 with known sizes, beside the projection of the same model and plan."""

from __future__ import annotations

import pytest

from moeprof.projector.calibrate import calibrate, measured
from moeprof.projector.correction import corrected, read_corrections, store
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

FILE = "maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz"
ARGS, TEMP = 2_009_196_532, 3_898_152_944
MODEL = ModelSpec(
    layers=5,
    hidden=2048,
    heads=16,
    attention=MlaSpec(768, 512, 128, 64, 128),
    experts=16,
    top_k=4,
    moe_ffn=1024,
    vocab=32768,
    dense_layers=1,
    dense_ffn=8192,
    compute_dtype="bfloat16",
    weight_dtype="bfloat16",
)


@pytest.fixture(scope="module")
def run(data):
    return measured(data / "traces" / FILE)


def setting(strategy: str) -> Setting:
    plan, hardware = ParallelPlan(expert=2), load_hardware("h100_sxm")
    return Setting(MODEL, plan, parse_strategy(strategy), hardware, sequence=2048, pdbs=2)


def test_the_figures_are_those_that_the_runtime_printed(run):
    assert (run.args_bytes, run.temp_bytes) == (ARGS, TEMP)
    # the process's own peak, 5,907,550,720 B, came outside of the two profiled steps
    assert run.allocator_peak_bytes == pytest.approx(5_907_550_720, rel=1e-5)
    assert (run.hardware, run.jax_version) == ("h100_sxm", "0.11.2")
    assert run.strategies == {"dense"}
    assert sum(part.size_bytes for part in run.parts) == ARGS + TEMP + run.results_bytes


def test_arguments_agree_and_the_rows_add_up_to_both_sides(run):
    found = calibrate(project(setting("dense-cf1.25")), run)
    args, temp, _ = found.totals
    assert args.projected_bytes == pytest.approx(ARGS, rel=3e-4)
    rows = [row for row in found.rows if row.pool == "temp"]
    assert sum(row.measured_bytes or 0 for row in rows) == temp.measured_bytes
    assert found.refusal is None


def test_the_correction_gives_back_what_was_measured(run, tmp_path):
    breakdown = project(setting("dense-cf1.25"))
    store(tmp_path / "c.json", calibrate(breakdown, run))
    again = corrected(breakdown, read_corrections(tmp_path / "c.json"))
    assert again.temp_bytes == pytest.approx(TEMP + run.results_bytes, abs=2)


def test_a_step_with_ragged_products_is_told_to_be_one(data):
    found = measured(data / "traces" / "h100x2_moe_ragged.xplane.pb")
    assert (found.args_bytes, found.temp_bytes) == (1_511_636_992, 4_617_467_776)
    assert found.strategies == {"sparse-ragged-dot"}


def test_another_strategy_is_refused(run):
    refusal = calibrate(project(setting("sparse-gmm")), run).refusal
    assert refusal is not None
    assert "the run's program is of dense" in refusal
