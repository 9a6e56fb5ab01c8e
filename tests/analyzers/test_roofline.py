import dataclasses

import pandas as pd
import pytest
from builders.programs import call, dims, parameter
from builders.work import hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.analyzers.questions.roofline import roofline
from moeprof.reports.run.document import build
from moeprof.tables.law import Law, Need
from moeprof.tables.trace import with_meta

H100 = {"a": "NVIDIA H100 80GB HBM3"}
SIZE = (
    4096  # a product of 4096³: 2 · 4096³ = 137,438,953,472 FLOP; 3 · 2 · 4096² = 100,663,296 bytes
)
BYTES = 2 * SIZE * SIZE


def matrix(name: str, dtype: str = "bf16"):
    return parameter(name, f"{dtype}[{SIZE},{SIZE}]", size_bytes=BYTES)


def product(name: str, dtype: str = "bf16", **more):
    made = call("__cublas$lt$matmul", f"({dtype}[{SIZE},{SIZE}], s8[64])", "a", "b", config=dims())
    return {**made, "op": name, "size_bytes": BYTES + 64, **more}


OPS = (
    *(matrix("a"), matrix("b")),
    product("ahead", op_name="jit(s)/jvp()/mlp/dot_general"),
    product("again", op_name="jit(s)/transpose(jvp())/rematted_computation/mlp/dot_general"),
    hlo("sum", "add", "a b", shape=f"bf16[{SIZE},{SIZE}]", size_bytes=BYTES, op_name="jit(s)/norm"),
    hlo("all", "all-reduce", "a", shape=f"bf16[{SIZE},{SIZE}]", size_bytes=BYTES),
)


def figures(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


def row(analysis, op: str):
    return analysis.table[analysis.table["op"] == op].iloc[0]


def run(*events, models=H100, ops=OPS, steps=None):
    return roofline(traced(events, ops, steps, models=models))


def test_an_op_of_two_kernels_computes_once():
    """Split along K, 200 µs and 20 µs for its sum: 137.44 GFLOP in 220 µs are 624.7 TFLOP/s.

    That is 63.1 % of 989.4. 100.66 MB in 220 µs are 457.6 GB/s, 13.7 % of 3.35 TB/s.
    """
    found = row(run(kernel("ahead", 0, 200_000), kernel("ahead", 200_000, 20_000, "k2")), "ahead")
    assert found["calls"] == 1
    assert found["flops"] == 137_438_953_472
    assert found["bytes"] == 100_663_296
    assert found["intensity"] == pytest.approx(1365.33, abs=0.01)
    assert found["tflop_per_s"] == pytest.approx(624.722, abs=0.001)
    assert found["compute_share"] == pytest.approx(0.6314, abs=1e-4)
    assert found["memory_share"] == pytest.approx(0.1366, abs=1e-4)
    assert found["bound"] == "compute"
    assert found["roofline_ns"] == pytest.approx(138_911.4, abs=0.1)  # 137.44 G / 989.4 T


def test_elementwise_work_is_bound_by_memory():
    """3 · 33.5 MB at 3.35 TB/s take 30,048.7 ns."""
    found = row(run(kernel("sum", 0, 40_000)), "sum")
    assert found["bound"] == "memory"
    assert found["roofline_ns"] == pytest.approx(30_048.7, abs=0.1)
    assert found["memory_share"] == pytest.approx(0.7512, abs=1e-4)


def test_recomputed_products_are_no_model_flops():
    """One of two is asked for, in a step of 1 ms: 137.44 / 989.4 = 13.9 %, twice that run."""
    work = (kernel("ahead", 0, 200_000), kernel("again", 300_000, 200_000))
    found = figures(run(*work, steps={0: (0, 1_000_000)}))
    assert found["model_flops"] == 137_438_953_472
    assert found["hardware_flops"] == 2 * 137_438_953_472
    assert found["mfu"] == pytest.approx(0.13891, abs=1e-5)
    assert found["hfu"] == pytest.approx(0.27782, abs=1e-5)


def test_what_attention_multiplies_again_on_the_way_back_is_no_model_flops():
    """Five products of 2·2·4·16·16·4 = 16,384 run, four are asked for."""
    config = {
        "cudnn_fmha_backend_config": {
            "intermediate_tensor_shape": {"dimensions": ["2", "4", "16", "16"]}
        }
    }
    back = call("__cudnn$fmhaSoftmaxBackward", "bf16[2,16,4,4]", "q", "k", "v", config=config)
    ops = (*(parameter(name, "bf16[2,16,4,4]", size_bytes=1024) for name in "qkv"), back)
    found = figures(run(kernel("out", 0, 1000), ops=ops))
    assert (found["hardware_flops"], found["model_flops"]) == (5 * 16_384, 4 * 16_384)


def test_mfu_of_the_interval_counts_the_time_between_steps():
    """137.44 GFLOP in steps of 0.5 ms, one a millisecond: 27.8 % of 989.4 TFLOP/s, and 13.9 %."""
    work = [kernel("ahead", s * 1_000_000, 500_000, step=s, run_id=s) for s in (0, 1)]
    found = figures(run(*work))
    assert found["mfu"] == found["mfu_at_most"] == pytest.approx(0.27782, abs=1e-5)
    assert found["interval_mfu"] == pytest.approx(0.13891, abs=1e-5)
    assert found["interval_mfu_at_most"] == pytest.approx(0.13891, abs=1e-5)
    alone = figures(run(work[0]))
    assert (alone["interval_mfu"], alone["interval_mfu_at_most"]) == (None, None)


def test_mfu_of_the_interval_falls_with_the_interval():
    work = [kernel("ahead", s * 1_000_000, 500_000, step=s, run_id=s) for s in (0, 1)]
    law = Law("intervals", "fail", "parts do not add up", (Need.INTERVALS,))
    trace = dataclasses.replace(traced(work, OPS, models=H100), trust=(law,))
    found = build(trace, analyze(trace, ["roofline"]))["analyses"]["roofline"]["headline"]
    values = {metric["metric"]: metric["value"] for metric in found}
    assert (values["interval_mfu"], values["interval_mfu_at_most"]) == (None, None)
    assert values["mfu"] == pytest.approx(0.27782, abs=1e-5)


def test_a_link_is_no_memory():
    found = run(kernel("all", 0, 40_000), kernel("ahead", 50_000, 200_000))
    assert row(found, "all")["bound"] == ""
    assert row(found, "all")[["memory_share", "roofline_ns"]].isna().all()
    assert figures(found)["roofline_time"] == pytest.approx(138_911.4, abs=0.1)


def test_without_a_known_device_there_are_intensities_and_no_shares():
    analysis = run(kernel("ahead", 0, 200_000), models=None)
    found = row(analysis, "ahead")
    assert found["intensity"] == pytest.approx(1365.33, abs=0.01)
    assert found[["compute_share", "memory_share", "roofline_ns"]].isna().all()
    assert figures(analysis)["mfu"] is None
    assert figures(analysis)["hardware_flops"] == 137_438_953_472
    assert any("--hardware" in note for note in analysis.notes)


def test_the_users_word_counts_before_the_profiles():
    trace = with_meta(traced([kernel("ahead", 0, 200_000)], OPS, models=H100), hardware="mi300x")
    assert figures(roofline(trace))["hardware"] == "mi300x"


def test_a_product_in_f32_has_no_share():
    ops = (matrix("a", "f32"), matrix("b", "f32"), product("ahead", "f32"))
    analysis = run(kernel("ahead", 0, 200_000), ops=ops)
    assert row(analysis, "ahead")[["compute_share", "roofline_ns"]].isna().all()
    assert row(analysis, "ahead")["bound"] == ""
    assert any("no peak is stated for f32" in note for note in analysis.notes)


def test_kernels_of_no_op_leave_the_sums_unknown():
    analysis = run(kernel("ahead", 0, 200_000), kernel("", 300_000, 50_000, "Cijk_gemm"))
    assert figures(analysis)["hardware_flops"] is None
    assert figures(analysis)["roofline_time"] is None
    assert figures(analysis)["covered_share"] == 0.8
    assert row(analysis, "ahead")["flops"] == 137_438_953_472


def test_copies_of_known_ops_do_not_make_up_for_kernels_of_none():
    """200 µs and a copy of 750 µs are known, 50 µs of a kernel are not: 95 %, of all that counts.

    A copy of no op, of 300 µs, multiplies nothing whatever it is.
    """
    ops = (*OPS, hlo("moved", "copy", "a", shape=f"bf16[{SIZE},{SIZE}]", size_bytes=BYTES))
    copied = kernel("moved", 300_000, 750_000, kind="copy")
    other = kernel("", 1_200_000, 300_000, "MemcpyD2D", kind="copy")
    unknown = kernel("", 1_100_000, 50_000, "Cijk_gemm")
    found = figures(run(kernel("ahead", 0, 200_000), copied, unknown, other, ops=ops))
    assert found["covered_share"] == 0.95
    assert found["hardware_flops"] is None


def test_a_body_runs_as_often_as_its_loop_goes_round():
    """3 rounds, each of two equal kernels: 3 executions, not 6."""
    ops = (
        *(matrix("a"), matrix("b")),
        hlo("loop", "while", "a", called="body", trip_count=3),
        product("ahead", computation="body"),
    )
    work = [kernel("ahead", 10_000 * i, 9_000, "split", run_id=1) for i in range(6)]
    assert row(run(*work, ops=ops), "ahead")["calls"] == 3


def test_a_guessed_op_computes_nothing_that_counts():
    guess = kernel("ahead", 0, 200_000, evidence="graph", confidence=0.3)
    assert run(guess).table.empty


def test_a_trace_without_work_says_so():
    analysis = run()
    assert analysis.table.empty
    assert analysis.notes[0].startswith("none in this trace")


def test_of_devices_that_differ_no_peak_is_told():
    trace = traced([kernel("ahead", 0, 200_000)], OPS, models=H100)
    other = trace.devices.assign(rank=1, device=1, model="NVIDIA B200")
    both = dataclasses.replace(trace, devices=pd.concat([trace.devices, other]))
    assert figures(roofline(both))["hardware"] is None
