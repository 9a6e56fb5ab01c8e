import dataclasses

import pytest
from builders.programs import call, dims, parameter
from builders.work import hlo, kernel, traced

from moeprof.analyzers.questions.grouped_gemm import grouped_gemm
from moeprof.analyzers.questions.roofline import roofline
from moeprof.tables.routing import RECEIVED, ROUTING

H100 = {"a": "NVIDIA H100 80GB HBM3"}
ROWS, G, K, N = 4096, 4, 1024, 512
NEEDED = 2 * ROWS * K * N  # 4,294,967,296 FLOP
AHEAD = "jit(s)/jvp()/moe/experts/"
BACK = "jit(s)/transpose(jvp())/moe/experts/"


def figures(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


def experts(target, shape, *operands, config=None, **more):
    made = call(target, shape, *operands, config=config)
    return {**made, "op": "up", "op_name": AHEAD + "dot", **more}


def only(op, *parameters, rows=None):
    """The analysis of one product of 10 µs on one device, with rows per expert if recorded."""
    trace = traced([kernel("up", 0, 10_000)], (*parameters, op), models=H100)
    if rows is not None:
        trace = with_routing(trace, rows)
    return trace, grouped_gemm(trace)


def with_routing(trace, tokens):
    """Tokens per expert of layer 0 and step 0, all experts on rank 0."""
    routing = [
        {"step": 0, "layer": 0, "expert": e, "rank": 0, "tokens": n} for e, n in enumerate(tokens)
    ]
    received = [{"step": 0, "layer": 0, "group": 0, "rank": 0, "rows": sum(tokens)}]
    return dataclasses.replace(
        trace,
        meta=dataclasses.replace(trace.meta, are_steps_numbered_by_script=True),
        routing=ROUTING.frame(routing),
        received=RECEIVED.frame(received),
    )


def custom_call():
    return (
        experts("moeprof_grouped_gemm", f"bf16[{ROWS},{N}]", "x", "w"),
        parameter("x", f"bf16[{ROWS},{K}]"),
        parameter("w", f"bf16[{G},{K},{N}]"),
    )


def test_a_grouped_call_without_recorded_rows_has_a_rate_at_most():
    """4.295 GFLOP of the worst case in 10 µs: at most 429.5 TFLOP/s."""
    _, analysis = only(*custom_call())
    found = analysis.table.iloc[0]
    shape = ["form", "groups", "rows", "k", "n", "dtype"]
    assert found[shape].tolist() == ["custom call", G, ROWS, K, N, "bf16"]
    assert found["worst_flops"] == NEEDED
    assert found["most_tflop_per_s"] == pytest.approx(429.497, abs=0.001)
    assert found[["tflop_per_s", "used_rows", "padding", "peak_share"]].isna().all()
    assert figures(analysis)["rate"] is None
    assert any("recorded no routing" in note for note in analysis.notes)


def test_used_rows_give_the_rate_and_the_padding():
    """1024 of 4096 rows: 1.074 GFLOP in 10 µs are 107.4 TFLOP/s, 10.85 % of 989.4; 75 % is padding.

    One of the four experts has no token.
    """
    trace, analysis = only(*custom_call(), rows=[512, 256, 256, 0])
    found = analysis.table.iloc[0]
    assert found["used_rows"] == 1024
    assert found["padding"] == 0.75
    assert found["used_flops"] == NEEDED / 4
    assert found["tflop_per_s"] == pytest.approx(107.374, abs=0.001)
    assert found["peak_share"] == pytest.approx(0.10852, abs=1e-5)
    assert figures(analysis)["flops_run_by_needed"] == found["excess"] == 1
    assert figures(analysis)["padding_share"] == 0.75
    assert figures(analysis)["empty_group_share"] == 0.25
    assert figures(roofline(trace))["model_flops"] == NEEDED / 4


def test_counts_of_experts_alone_give_used_rows_where_each_device_is_a_rank():
    """As `--routing auto` counts them; of a share of the devices one rank's counts tell nothing."""
    trace, _ = only(*custom_call(), rows=[512, 256, 256, 0])
    alone = dataclasses.replace(trace, received=RECEIVED.frame())
    analysis = grouped_gemm(alone)
    assert analysis.table["used_rows"].tolist() == [1024]
    assert analysis.table["padding"].tolist() == [0.75]
    assert any("the pairs that routers chose, right where none" in note for note in analysis.notes)
    meta = dataclasses.replace(alone.meta, expected_devices=2)
    shared = grouped_gemm(dataclasses.replace(alone, meta=meta))
    assert shared.table["used_rows"].isna().all()
    assert any("rows really used are not known: the run" in note for note in shared.notes)
    unknown = ROUTING.frame(alone.routing.assign(rank=-1).to_dict("records"))
    nobody = grouped_gemm(dataclasses.replace(alone, routing=unknown))
    assert nobody.table["used_rows"].isna().all()


def test_rows_that_the_product_has_no_room_for_are_not_its_own():
    _, analysis = only(*custom_call(), rows=[5000, 0, 0, 0])
    assert analysis.table["used_rows"].isna().all()


def test_a_dense_fallback_runs_each_row_for_each_group():
    """[4096, 4·1024] × [4·1024, 512]: four times the FLOPs, so 3/4 of 10 µs is wasted."""
    trace, analysis = only(
        experts(
            *("__cublas$lt$matmul", f"(bf16[{ROWS},{N}], s8[64])", "xv", "wv"),
            config=dims(),
            op_name=AHEAD + "ragged_dot_general",
        ),
        parameter("x", f"bf16[{ROWS},{G},{K}]"),
        parameter("w", f"bf16[{G},{K},{N}]"),
        hlo("xv", "bitcast", "x", shape=f"bf16[{ROWS},{G * K}]"),
        hlo("wv", "bitcast", "w", shape=f"bf16[{G * K},{N}]"),
    )
    found = analysis.table.iloc[0]
    shape = ["form", "groups", "rows", "k", "n"]
    assert found[shape].tolist() == ["dense fallback", G, ROWS, K, N]
    assert found["run_flops"] == G * NEEDED
    assert found["worst_flops"] == NEEDED
    assert found["excess"] == 4
    assert found["wasted_ns"] == 7_500
    assert figures(analysis)["fallback_wasted_time"] == 7_500
    assert figures(roofline(trace))["hardware_flops"] == G * NEEDED
    assert figures(roofline(trace))["model_flops_at_most"] == NEEDED
    assert figures(roofline(trace))["model_flops"] is None


def test_groups_are_shown_by_what_a_fusion_is_passed():
    """XLA for CPUs puts the product alone into a fusion; the views [M, G·K] are made outside."""
    _, analysis = only(
        hlo("up", "fusion", "xv wv", shape=f"f32[{ROWS},{N}]", called="inside",
            op_name=AHEAD + "ragged_dot_general"),
        parameter("x", f"f32[{ROWS},{G},{K}]"),
        parameter("w", f"f32[{G},{K},{N}]"),
        hlo("xv", "bitcast", "x", shape=f"f32[{ROWS},{G * K}]"),
        hlo("wv", "bitcast", "w", shape=f"f32[{G * K},{N}]"),
        hlo("a", "parameter", computation="inside", shape=f"f32[{ROWS},{G * K}]", parameter=0),
        hlo("b", "parameter", computation="inside", shape=f"f32[{G * K},{N}]", parameter=1),
        hlo("product", "dot", "a b", computation="inside", shape=f"f32[{ROWS},{N}]", is_root=True,
            details="lhs_contracting=1 rhs_contracting=0"),
    )  # fmt: skip
    found = analysis.table.iloc[0]
    assert found[["groups", "rows", "k", "n"]].tolist() == [G, ROWS, K, N]
    assert found["wasted_ns"] == 7_500


def test_groups_that_the_program_does_not_show_are_not_guessed():
    _, analysis = only(
        experts(
            *("__cublas$lt$matmul", f"(bf16[{ROWS},{N}], s8[64])", "x", "w"),
            config=dims(),
            op_name=AHEAD + "ragged_dot_general",
        ),
        parameter("x", f"bf16[{ROWS},{G * K}]"),
        parameter("w", f"bf16[{G * K},{N}]"),
    )
    found = analysis.table.iloc[0]
    assert found["groups"] == -1
    assert found[["excess", "worst_flops", "wasted_ns"]].isna().all()
    assert figures(analysis)["fallback_wasted_time"] is None


def test_capacity_gives_every_expert_the_same_rows():
    """[4, 1024, 1024] × [4, 1024, 512]: 4096 rows in all."""
    _, analysis = only(
        experts(
            *("__cublas$lt$matmul", f"(bf16[{G},{ROWS // G},{N}], s8[64])", "x", "w"),
            config=dims((2,), (1,), (0,), (0,)),
        ),
        parameter("x", f"bf16[{G},{ROWS // G},{K}]"),
        parameter("w", f"bf16[{G},{K},{N}]"),
    )
    found = analysis.table.iloc[0]
    assert found[["form", "groups", "rows"]].tolist() == ["batched dense", G, ROWS]
    assert found["run_flops"] == found["worst_flops"] == NEEDED
    assert found["excess"] == 1
    assert found["wasted_ns"] == 0
    assert found["tflop_per_s"] == pytest.approx(429.497, abs=0.001)


def test_the_gradient_of_a_weight_sums_over_rows():
    """[4, 1024, 2048]ᵀ × [4, 1024, 512] over 1024 rows per expert, beside the product forward."""
    forward = experts(
        *("__cublas$lt$matmul", f"(bf16[{G},1024,{N}], s8[64])", "x", "w"),
        config=dims((2,), (1,), (0,), (0,)),
    )
    back = experts(
        *("__cublas$lt$matmul", f"(bf16[{G},2048,{N}], s8[64])", "x", "y"),
        config=dims((1,), (1,), (0,), (0,)),
        op_name=BACK + "dot",
    )
    ops = (
        parameter("x", f"bf16[{G},1024,2048]"),
        parameter("w", f"bf16[{G},2048,{N}]"),
        parameter("y", f"bf16[{G},1024,{N}]"),
        forward,
        {**back, "op": "dw"},
    )
    trace = traced([kernel("up", 0, 10_000), kernel("dw", 20_000, 10_000)], ops)
    found = grouped_gemm(trace).table.set_index("op")
    columns = ["phase", "rows", "k", "n", "is_weight_gradient"]
    assert found.loc["up", columns].tolist() == ["forward", 4096, 2048, N, False]
    assert found.loc["dw", columns].tolist() == ["backward", 4096, 2048, N, True]


def test_the_best_dense_product_is_the_measure():
    """A projection of 2 · 4096 · 2048 · 1024 = 17.18 GFLOP in 20 µs is 859 TFLOP/s."""
    product, *operands = custom_call()
    dense = call("__cublas$gemm", "bf16[4096,1024]", "p", "q", config=dims())
    ops = (
        *(product, *operands, parameter("p", "bf16[4096,2048]"), parameter("q", "bf16[2048,1024]")),
        {**dense, "op": "proj", "op_name": "jit(s)/jvp()/attention/dot_general"},
    )
    work = [kernel("up", 0, 10_000), kernel("proj", 20_000, 20_000)]
    trace = with_routing(traced(work, ops), [1024, 1024, 1024, 1024])
    analysis = grouped_gemm(trace)
    assert figures(analysis)["best_dense_rate"] == pytest.approx(858.993, abs=0.001)
    assert analysis.table["dense_share"].tolist() == [pytest.approx(0.5)]


def test_a_call_whose_shapes_do_not_tell_is_there_without_figures():
    _, analysis = only(experts("moeprof_grouped_gemm", "bf16[7]", "x"), parameter("x", "bf16[3]"))
    found = analysis.table.iloc[0]
    assert found[["groups", "rows", "k", "n"]].tolist() == [-1, -1, -1, -1]
    assert found["per_step_ns"] == 10_000
    assert found[["worst_flops", "tflop_per_s"]].isna().all()
    assert any("whose sizes nothing states" in note for note in analysis.notes)


def test_a_model_without_experts_has_none():
    analysis = grouped_gemm(traced([kernel("", 0, 10, "k")]))
    assert analysis.table.empty
    assert analysis.notes[0].startswith("none in this trace")
