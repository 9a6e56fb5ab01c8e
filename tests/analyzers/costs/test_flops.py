"""FLOPs of ops, each worked out by hand."""

import pytest
from builders.programs import call, dims, parameter, program
from builders.work import hlo

from moeprof.analyzers.costs.flops import Flops, Product, flops_of, products_of


def product_of(*rows) -> Product | None:
    made = program(*rows)
    found = products_of(made, made.ops["out"])
    return found[0] if found else None


def test_a_dot_takes_two_flops_per_row_column_and_summand():
    """[4, 8] × [8, 16]: 4·16 sums of 8 products, 2·4·8·16 = 1024."""
    found = product_of(
        parameter("a", "bf16[4,8]"),
        parameter("b", "bf16[8,16]"),
        hlo("out", "dot", "a b", shape="f32[4,16]", details="lhs_contracting=1 rhs_contracting=0"),
    )
    assert found == Product(1, 4, 8, 16, "bf16", "f32")
    assert found.flops == 1024


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"])
def test_a_library_call_says_its_dimensions_in_its_config(target):
    """[3, 5, 4]ᵀ × [3, 5, 6] over 5: three products of 4 × 5 × 6, 2·3·4·5·6 = 720."""
    found = product_of(
        parameter("a", "f8e4m3fn[3,5,4]"),
        parameter("b", "f8e4m3fn[3,5,6]"),
        call(target, "(bf16[3,4,6], s8[1024])", "a", "b", config=dims((1,), (1,), (0,), (0,))),
    )
    assert found == Product(3, 4, 5, 6, "f8e4m3fn", "bf16")
    assert found.flops == 720


@pytest.mark.parametrize("config", [None, {}, [], {"gemm_backend_config": {}}, dims((7,), (0,))])
def test_a_call_whose_config_does_not_fit_has_no_flops_rather_than_some(config):
    made = program(
        parameter("a", "bf16[4,8]"),
        parameter("b", "bf16[8,16]"),
        call("__cublas$lt$matmul", "bf16[4,16]", "a", "b", config=config),
    )
    assert flops_of(made, made.ops["out"]) == Flops(None, "", "gemm")


def test_a_fusion_counts_what_stands_inside_it():
    made = program(
        parameter("a", "bf16[4,8]"),
        parameter("b", "bf16[8,16]"),
        parameter("x", "bf16[4,8]", computation="inside", parameter=0),
        parameter("y", "bf16[8,16]", computation="inside", parameter=1),
        hlo(
            *("dot", "dot", "x y"),
            shape="bf16[4,16]",
            computation="inside",
            details="lhs_contracting=1 rhs_contracting=0",
        ),
        hlo("out", "fusion", "a b", shape="bf16[4,16]", called="inside"),
    )
    assert flops_of(made, made.ops["out"]) == Flops(1024, "bf16", "gemm")


def sliced(target: str, shape: str, config: object = None):
    """A library call that XLA put into a fusion, to read a slice of a stack in place."""
    inside = {"computation": "inside"}
    return program(
        parameter("a", "bf16[4,8]"),
        parameter("stack", "bf16[3,8,16]"),
        parameter("x", "bf16[4,8]", parameter=0, **inside),
        parameter("y", "bf16[3,8,16]", parameter=1, **inside),
        hlo("cut", "slice", "y", shape="bf16[1,8,16]", **inside),
        hlo("layer", "bitcast", "cut", shape="bf16[8,16]", **inside),
        {**call(target, shape, "x", "layer", config=config), "op": "called", **inside},
        hlo("out", "fusion", "a stack", shape=shape, called="inside"),
    )


def test_a_library_call_inside_a_fusion_counts_like_one_outside():
    made = sliced("__cublas$gemm", "bf16[4,16]", dims())
    assert flops_of(made, made.ops["out"]) == Flops(1024, "bf16", "gemm")


@pytest.mark.parametrize(
    ("target", "kind"),
    [("__cublas$gemm", "gemm"), ("__cudnn$fmhaSoftmax", "attention"), ("gmm", "grouped gemm")],
)
def test_a_library_call_inside_a_fusion_that_tells_nothing_is_not_zero(target, kind):
    made = sliced(target, "bf16[]")
    assert flops_of(made, made.ops["out"]) == Flops(None, "", kind)


@pytest.mark.parametrize("target", ["moeprof_grouped_gemm", "ck_grouped_gemm", "gmm"])
@pytest.mark.parametrize("weight", ["bf16[2,8,6]", "bf16[2,6,8]"])
def test_a_grouped_product_multiplies_each_row_once(target, weight):
    """10 rows of width 8 to width 6, whichever of the 2 groups each is of: 2·10·8·6 = 960."""
    found = product_of(
        parameter("rows", "bf16[10,8]"),
        parameter("weight", weight),
        parameter("lens", "s64[2]"),
        call(target, "(bf16[10,6], u8[512])", "rows", "weight", "lens"),
    )
    assert found == Product(2, 10, 8, 6, "bf16", "bf16", is_ragged=True)
    assert found.flops == 960


@pytest.mark.parametrize("result", ["bf16[2,8,6]", "bf16[2,6,8]"])
def test_the_gradient_of_a_groups_weight_sums_over_its_rows(result):
    """[10, 8]ᵀ × [10, 6], two results: every row counts once, 2·10·8·6 = 960."""
    found = product_of(
        parameter("rows", "bf16[10,8]"),
        parameter("gradient", "bf16[10,6]"),
        call("ck_grouped_gemm_variable_k", f"({result}, u8[512])", "rows", "gradient"),
    )
    assert found == Product(2, 8, 10, 6, "bf16", "bf16", is_ragged=True)
    assert found.flops == 960


@pytest.mark.parametrize(
    ("batch", "weight"), [(1, "bf16[1,2,8,6]"), (3, "bf16[3,2,6,8]"), (3, "bf16[1,2,8,6]")]
)
def test_a_batch_in_front_multiplies_the_rows_of_each_element(batch, weight):
    """10 rows of width 8 to width 6 in each element of the batch: 960 each."""
    found = product_of(
        parameter("rows", f"bf16[{batch},10,8]"),
        parameter("weight", weight),
        parameter("lens", f"s32[{batch},2]"),
        parameter("offs", "s32[1,0]"),
        call("moeprof_grouped_gemm", f"bf16[{batch},10,6]", "rows", "weight", "lens", "offs"),
    )
    assert found == Product(2 * batch, 10 * batch, 8, 6, "bf16", "bf16", is_ragged=True)
    assert found.flops == 960 * batch


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 3), (3, 1)])
def test_a_batch_in_front_of_a_weights_gradient(batch, rows):
    """Three elements share the rows or not: each sums over its 10 rows, 960 each."""
    found = product_of(
        parameter("rows", f"bf16[{rows},10,8]"),
        parameter("gradient", f"bf16[{batch},10,6]"),
        parameter("lens", f"s32[{batch},2]"),
        call("moeprof_grouped_gemm_variable_k", f"bf16[{batch},2,8,6]", "rows", "gradient", "lens"),
    )
    assert found == Product(2 * batch, 8, 10 * batch, 6, "bf16", "bf16", is_ragged=True)
    assert found.flops == 960 * batch


def test_a_ragged_dot_is_one_product_of_its_rows():
    found = product_of(
        parameter("rows", "bf16[10,8]"),
        parameter("weight", "bf16[2,8,6]"),
        parameter("lens", "s32[2]"),
        hlo("out", "ragged-dot", "rows weight lens", shape="bf16[10,6]"),
    )
    assert found is not None
    assert found.flops == 960


def test_a_convolution_counts_each_window_of_each_output():
    """conv3d: 7·6·5·4 outputs of 3 features in 1 image, kernel 2·2·2 over 4 features of a group.

    2 · (1·3·7·6·5) outputs · (4·2·2·2) products each = 2 · 630 · 32 = 40,320.
    """
    made = program(
        parameter("x", "bf16[1,8,8,7,6]"),
        parameter("kernel", "bf16[3,4,2,2,2]"),
        hlo(
            *("out", "convolution", "x kernel"),
            shape="bf16[1,3,7,6,5]",
            details="kernel_output=0",
        ),
    )
    assert flops_of(made, made.ops["out"]) == Flops(40_320, "bf16", "convolution")


@pytest.mark.parametrize(
    ("way", "operands", "result"),
    [
        ("Forward", ("bf16[2,8,9]", "bf16[16,8,3]"), "bf16[2,16,7]"),
        ("BackwardInput", ("bf16[2,16,7]", "bf16[16,8,3]"), "bf16[2,8,9]"),
        ("BackwardFilter", ("bf16[2,8,9]", "bf16[2,16,7]"), "bf16[16,8,3]"),
    ],
)
def test_gradients_of_a_convolution_cost_what_it_costs(way, operands, result):
    """2 · (2·16·7) outputs · (8·3) products = 10,752, in each direction."""
    made = program(
        parameter("a", operands[0]),
        parameter("b", operands[1]),
        {
            **call(f"__cudnn$conv{way}", f"({result}, u8[64])", "a", "b"),
            "details": "kernel_output=0",
        },
    )
    assert flops_of(made, made.ops["out"]) == Flops(10_752, "bf16", "convolution")


def attention(target: str, result: str, **more: object):
    """2 sequences, 4 heads, 16 × 16 scores, width 4: a product takes 2·2·4·16·16·4 = 16,384."""
    config = {
        "cudnn_fmha_backend_config": {
            "intermediate_tensor_shape": {"dimensions": ["2", "4", "16", "16"]},
            **more,
        }
    }
    made = program(
        *(parameter(name, "bf16[2,16,4,4]") for name in "qkv"),
        call(target, result, "q", "k", "v", config=config),
    )
    return flops_of(made, made.ops["out"])


@pytest.mark.parametrize(
    ("mask", "flops", "kind"),
    [("NO_MASK", 32_768, "attention"), ("CAUSAL", 16_384, "causal attention")],
)
def test_a_causal_mask_leaves_half_of_attention(mask, flops, kind):
    """Q·Kᵀ and P·V."""
    found = attention("__cudnn$fmhaSoftmax", "(bf16[2,4,16,4], u8[0])", mask_type=mask)
    assert found == Flops(flops, "bf16", kind)


@pytest.mark.parametrize(("mask", "flops"), [("NO_MASK", 81_920), ("CAUSAL", 40_960)])
def test_attention_backward_multiplies_queries_and_keys_again(mask, flops):
    """Five products, of which Q·Kᵀ was computed ahead and is not asked for again."""
    found = attention("__cudnn$fmhaSoftmaxBackward", "(bf16[2,4,16,4], u8[0])", mask_type=mask)
    assert (found.flops, found.again) == (flops, flops // 5)


@pytest.mark.parametrize(("length", "flops"), [(4, 7_168), (16, 16_384), (99, 16_384)])
def test_a_sliding_window_leaves_a_band_below_the_diagonal(length, flops):
    """Of 16 · 16 scores 16·4 − 4·4/2 = 56, where the mask alone leaves 128: 32,768 · 56 / 256."""
    more = {"mask_type": "CAUSAL", "sliding_window_length": length}
    found = attention("__cudnn$fmhaSoftmax", "(bf16[2,4,16,4], u8[0])", **more)
    assert found.flops == flops


def test_elementwise_work_and_exchanges_multiply_nothing():
    made = program(
        parameter("a", "f32[8]"),
        hlo("sum", "add", "a a", shape="f32[8]"),
        call("moe_dispatch", "f32[8]", "a"),
    )
    assert flops_of(made, made.ops["sum"]).flops == 0
    assert flops_of(made, made.ops["out"]) == Flops(0, "", "exchange")
