"""FLOPs, rates and waste in profiles that others made, against figures by hand."""

import pytest

from moeprof.analyzers.costs.table import costs_of
from moeprof.analyzers.questions.grouped_gemm import grouped_gemm
from moeprof.analyzers.questions.roofline import roofline


def figures(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


def test_a_convolution_of_two_kernels_counts_once(opened):
    """5120 · 34·31·53 outputs of 16·1·2·2 products each, twice: 36.610 GFLOP, 5 executions.

    It takes two kernels, ten in all; 5 · 36.610 GFLOP in their 1.540 ms are 118.9 TFLOP/s.
    """
    costs = costs_of(opened("mi300x_jax_conv3d.xplane.pb")).pandas().set_index("op")
    found = costs.loc["cudnn-conv.1.0"]
    assert found["flops"] == 2 * (5120 * 34 * 31 * 53) * (16 * 1 * 2 * 2) == 36_609_720_320
    assert (found["runs"], found["pieces"]) == (5, 10)
    assert found["kind"] == "convolution"


def test_ragged_dot_runs_dense_over_all_experts(opened):
    """32 experts over EP 2: 16 here. 4096 tokens · top-4 · 2 ranks: room for 32,768 rows.

    wi makes gate and up at once, 1024 → 2 · 512, wo 512 → 1024: 68.7 and 34.4 GFLOP are needed and
    16 times as much runs. Each runs forward, again, and twice backward: 8 call sites in 4 layers,
    4 · 4 · 16 · (68.72 + 34.36) GFLOP = 26.39 TFLOP per device and step.
    """
    analysis = grouped_gemm(opened("h100x2_moe_ragged.xplane.pb"))
    table = analysis.table
    assert len(table) == 8
    assert set(table["form"]) == {"dense fallback"}
    assert set(table["groups"]) == {16}
    assert set(table["rows"]) == {4096 * 4 * 2}
    assert set(table["calls"]) == {4}
    assert set(table["excess"]) == {16}
    # gradients of the input run from N to K, those of the weight are of [K, N]
    sizes = sorted(zip(table["k"], table["n"], table["is_weight_gradient"], strict=True))
    assert sizes == [
        *([(512, 1024, False)] * 2 + [(512, 1024, True), (1024, 512, False)]),
        *([(1024, 1024, False)] * 3 + [(1024, 1024, True)]),
    ]
    assert table["run_flops"].sum() == 4 * 4 * 16 * 2 * 32_768 * (1024 * 1024 + 512 * 1024)
    found = figures(analysis)
    assert found["flops_run_by_needed"] == 16
    assert found["grouped_gemm_time"] == pytest.approx(28.226e6, rel=1e-4)
    assert found["fallback_wasted_time"] == pytest.approx(28.226e6 * 15 / 16, rel=1e-4)
    assert found["rate"] == pytest.approx(26.388 / 28.226e-3, rel=1e-4)  # 934.9 TFLOP/s
    assert found["padding_share"] is None


@pytest.mark.parametrize("name", ["", "_nocmdbuf"])
def test_capacity_runs_one_batched_product_per_expert(opened, name):
    """2 sequences of 2048 tokens, top-4 of 16 experts, capacity 1.25: 2048·4/16·1.25 = 640 rows
    per sequence and expert, 16 · 2 · 640 = 20,480 in all.

    Three matrices of 2048 × 1024, forward, again, and twice backward: 12 call sites in 4 layers, of
    2 · 20,480 · 2048 · 1024 = 85.9 GFLOP each: 4.123 TFLOP per device and step.
    """
    analysis = grouped_gemm(opened(f"maxtext_h100x2_ds_ep2_cf125{name}.xplane.pb.gz"))
    table = analysis.table
    assert len(table) == 12
    assert set(table["form"]) == {"batched dense"}
    assert set(table["groups"]) == {16}
    assert set(table["rows"]) == {20_480}
    assert set(table["calls"]) == {4}
    assert {tuple(sorted(pair)) for pair in table[["k", "n"]].to_numpy()} == {(1024, 2048)}
    assert table["phase"].value_counts().to_dict() == {"backward": 6, "forward": 3, "recompute": 3}
    assert table["is_weight_gradient"].sum() == 3
    assert table["run_flops"].sum() == 12 * 4 * 85_899_345_920
    assert figures(analysis)["flops_run_by_needed"] == 1
    assert 600 < figures(analysis)["rate"] < 700


def test_command_buffers_hide_no_flops(opened):
    """The same program, with and without: the same FLOPs, 15.754 TFLOP per device and step."""
    with_buffers, without = (
        figures(roofline(opened(f"maxtext_h100x2_ds_ep2_cf125{name}.xplane.pb.gz")))
        for name in ("", "_nocmdbuf")
    )
    assert with_buffers["hardware_flops"] == without["hardware_flops"] == 15_753_940_041_728
    assert with_buffers["hardware"] == without["hardware"] == "h100_sxm"
    # 15.754 TFLOP in a step of 61.31 ms, with the programs that prepare it, of 989.5 TFLOP/s
    assert without["hfu"] == pytest.approx(0.2597, abs=0.0005)
    assert without["mfu"] is None  # which of the capacity's rows hold tokens is not recorded


def test_the_head_is_three_products_of_the_vocabulary(opened):
    """4096 tokens · 1024 · 8192, forward and twice backward: 3 · 2 · 34.36 G = 206.2 GFLOP."""
    analysis = roofline(opened("h100x2_moe_ragged.xplane.pb"))
    parts = analysis.table[analysis.table["op"] == ""].set_index("component")
    assert parts.loc["head", "flops"] == 3 * 2 * 4096 * 1024 * 8192


def test_no_rate_is_above_the_peak(opened):
    for name in ("h100x2_moe_ragged.xplane.pb", "maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz"):
        table = roofline(opened(name)).table
        assert table["compute_share"].max() < 1
