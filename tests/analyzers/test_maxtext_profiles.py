"""Profiles of MaxText, in `tests/data/maxtext`: what no rule explains stays below 2 %."""

from pathlib import Path

import pytest

from moeprof.analyzers import analyze
from moeprof.ingest import open_run

DATA = Path(__file__).parents[1] / "data" / "maxtext"
UNEXPLAINED = ("unattributed", "other", "moe_other")
"""What counts as not explained: no op, no rule for it, or no more than its being in a MoE layer."""


@pytest.fixture(
    scope="module", params=["deepseek3_tiny_ep8_cf125", "deepseek3_tiny_fsdp8_ragged_dot"]
)
def parts(request):
    trace = open_run(DATA / f"{request.param}.xplane.pb.gz")
    return analyze(trace, ["breakdown"])["breakdown"].table


def test_less_than_two_percent_of_device_time_stay_unexplained(parts):
    assert parts["share"][parts["component"].isin(UNEXPLAINED)].sum() < 0.02


def test_every_part_of_the_model_is_found_in_its_kind_of_layer(parts):
    found = set(zip(parts["layer_kind"], parts["component"], parts["phase"], strict=True))
    assert {
        ("moe_layer", "grouped_gemm", "forward"),
        ("moe_layer", "grouped_gemm", "recompute"),
        ("moe_layer", "grouped_gemm", "backward"),
        ("moe_layer", "router", "forward"),
        ("moe_layer", "shared_expert", "forward"),
        ("moe_layer", "attention", "forward"),
        ("moe_layer", "gradient_reduce", "backward"),
        ("dense_layer", "dense_mlp", "forward"),
        ("dense_layer", "attention", "forward"),
        ("embedding", "embedding", "forward"),
        ("head", "head", "backward"),
        ("optimizer", "optimizer", "other"),
    } <= found


def test_weights_are_gathered_for_the_layers(parts):
    gathers = parts[parts["component"] == "weight_gather"]
    assert {"moe_layer", "dense_layer"} <= set(gathers["layer_kind"])
