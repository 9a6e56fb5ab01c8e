"""Kinds of operations, each told from an instruction written by hand."""

import pytest
from builders.programs import call, parameter, program
from builders.work import Row, hlo

from moeprof.analyzers.classify.op_kinds import KINDS, kind_of


def kind(*rows: Row, op: str = "out", component: str = "other") -> str:
    made = program(parameter("x", "f32[8,4]"), parameter("i", "s32[8]"), *rows)
    found = kind_of(made, made.ops[op], component)
    assert found in KINDS
    return found


def fused(*opcodes: str, operands: str = "x") -> tuple[Row, ...]:
    """A fusion of a chain of ops."""
    names = [f"in_{place}" for place in range(len(opcodes))]
    chain = [
        hlo(name, code, before, shape="f32[8,4]", computation="inside")
        for name, code, before in zip(names, opcodes, ["", *names], strict=False)
    ]
    return (*chain, hlo("out", "fusion", operands, shape="f32[8,4]", called="inside"))


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("dot", "gemm"),
        ("ragged-dot", "gemm"),
        ("convolution", "convolution"),
        ("sort", "sort"),
        ("topk", "top_k"),
        ("gather", "gather"),
        ("reduce", "reduce"),
        ("reduce-window", "reduce"),
        ("add", "elementwise"),
        ("convert", "elementwise"),
        ("copy", "copy"),
        ("transpose", "copy"),
        ("concatenate", "copy"),
        ("dynamic-update-slice", "copy"),
        ("all-gather", "all_gather"),
        ("all-reduce-start", "all_reduce"),
        ("all-reduce-done", "all_reduce"),
        ("ragged-all-to-all", "ragged_all_to_all"),
        ("all-to-all", "all_to_all"),
        ("reduce-scatter", "reduce_scatter"),
        ("collective-permute-start", "permute"),
        ("recv-done", "send_recv"),
        ("outfeed", "host_transfer"),
        ("while", "loop"),
        ("conditional", "loop"),
    ],
)
def test_the_opcode_tells(opcode, expected):
    assert kind(hlo("out", opcode, "x", shape="f32[8,4]")) == expected


@pytest.mark.parametrize(
    ("opcodes", "expected"),
    [
        (("parameter", "exponential", "dot"), "gemm"),
        (("parameter", "gather", "multiply"), "gather"),
        (("parameter", "multiply", "reduce"), "reduce"),
        (("parameter", "multiply", "transpose"), "elementwise"),
        (("parameter", "transpose", "bitcast"), "copy"),
        (("parameter", "convert"), "elementwise"),
    ],
)
def test_of_a_fusion_the_most_telling_part_does(opcodes, expected):
    assert kind(*fused(*opcodes)) == expected


def test_an_array_of_one_number_is_a_fill_and_a_row_repeated_is_a_copy():
    assert kind(*fused("constant", "broadcast", operands="")) == "memset"
    assert kind(parameter("one", "f32[]"), hlo("out", "broadcast", "one", shape="f32[8]")) == (
        "memset"
    )
    assert kind(hlo("out", "broadcast", "x", shape="f32[2,8,4]")) == "copy"


@pytest.mark.parametrize(("combiner", "expected"), [("add", "atomic_scatter"), ("", "scatter")])
def test_rows_that_meet_are_summed_or_overwritten(combiner, expected):
    inside = {"computation": "combiner"}
    rows = [parameter("old", "f32[]", parameter=0, **inside)]
    rows += [parameter("new", "f32[]", parameter=1, **inside)]
    rows += [hlo("sum", combiner, "old new", **inside)] if combiner else []
    out = hlo("out", "scatter", "x i x", shape="f32[8,4]", called="combiner")
    assert kind(*rows, out) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("__cublas$lt$matmul$f8", "gemm"),
        ("__cublas$lt$groupedMatmul", "grouped_gemm"),
        ("ck_grouped_gemm", "grouped_gemm"),
        ("te_gemm_ffi", "gemm"),
        ("__onednn$matmul", "gemm"),
        ("__cudnn$fmhaSoftmaxBackward", "attention"),
        ("te_fused_attn_forward_ffi", "attention"),
        ("__cudnn$convForward", "convolution"),
        ("__cub$DeviceRadixSort", "sort"),
        ("__gpu$TopK", "top_k"),
        ("TopK", "top_k"),
        ("moe_dispatch", "all_to_all"),
        ("moe_cached_dispatch_inproc", "all_to_all"),
        ("my_call", "custom_call"),
    ],
)
def test_a_custom_call_is_told_by_its_target_in_a_fusion_too(target, expected):
    assert kind(call(target, "f32[8,4]", "x")) == expected
    inner = {**call(target, "f32[8,4]", "p"), "op": "called", "computation": "inside"}
    given = parameter("p", "f32[8,4]", parameter=0, computation="inside")
    out = hlo("out", "fusion", "x", shape="f32[8,4]", called="inside")
    assert kind(given, inner, out) == expected


def test_a_product_in_the_experts_part_is_a_grouped_one_however_it_was_expanded():
    assert kind(hlo("out", "dot", "x x"), component="grouped_gemm") == "grouped_gemm"
    batched = call("__cublas$gemm", "(f32[2,8,4], s8[64])", "x", "x")
    assert kind(batched, component="grouped_gemm") == "grouped_gemm"
    assert kind(batched, component="attention") == "gemm"
    # all groups at once, summed over together with K: [rows, G·K] × [G·K, N]
    summed = call("__cublas$gemm", "(f32[8,4], s8[64])", "x", "x")
    assert kind(summed, component="grouped_gemm") == "grouped_gemm"
    assert kind(summed, component="router") == "gemm"


def test_a_wrapper_is_of_the_kind_of_what_it_starts():
    inside = {"computation": "wrapped"}
    rows = (
        parameter("p", "f32[8,4]", parameter=0, **inside),
        hlo("sent", "reduce-scatter", "p", shape="f32[4,4]", is_root=True, **inside),
        hlo("start", "async-start", "x", called="wrapped"),
        hlo("out", "async-done", "start"),
    )
    assert kind(*rows) == kind(*rows, op="start") == "reduce_scatter"
