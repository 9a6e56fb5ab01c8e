"""Names are believed where the values under them flow as the name says.

D = 8 features, F = 12, E = 4 experts, 16 tokens, top-2; one layer in a function of any name.
"""

import pytest
from builders.programs import program
from builders.work import hlo

from moeprof.analyzers.classify import classify

PATH = "jit(f)/jvp()/"


def layer(name, **more):
    """Router and experts in a function ``name``."""
    at = {"frames": f"/u/model.py:5:{name}\n/u/model.py:90:main", **more}
    return (
        hlo("ids", "parameter", shape="s32[16]", parameter=0),
        hlo("table", "parameter", shape="f32[50,8]", parameter=1),
        hlo("gate", "parameter", shape="f32[8,4]", parameter=2),
        hlo("up", "parameter", shape="f32[4,8,12]", parameter=3),
        hlo("x", "gather", "table ids", 512, shape="f32[16,8]"),
        hlo("scores", "dot", "x gate", 256, shape="f32[16,4]", op_name=PATH + "dot", **at),
        hlo(
            "chosen", "topk", "scores", 256,
            shape="(f32[16,2], s32[16,2])", op_name=PATH + "top_k", **at,
        ),
        hlo("which", "get-tuple-element", "chosen", 128, shape="s32[16,2]", details="index=1"),
        hlo("flat", "reshape", "which", 128, shape="s32[32]"),
        hlo("order", "sort", "flat", 128, shape="s32[32]", details="dimensions=0"),
        hlo("rows", "gather", "x order", 1024, shape="f32[32,8]", op_name=PATH + "gather", **at),
        hlo(
            "wide", "ragged-dot", "rows up flat", 1536,
            shape="f32[32,12]", op_name=PATH + "ragged_dot_general", **at,
        ),
        hlo("act", "tanh", "wide", 1536, shape="f32[32,12]", op_name=PATH + "tanh", **at),
        hlo("sums", "reduce", "act", 64, shape="f32[16]", op_name=PATH + "reduce", **at),
    )  # fmt: skip


def found(*rows):
    classes = classify({7: program(*rows)}).pandas().set_index("op")
    return classes["component"].to_dict(), classes["evidence"].to_dict()


@pytest.mark.parametrize("name", ["route", "attention", "layer"])
def test_a_function_that_holds_a_whole_layer_is_not_what_it_is_called(name):
    back = "jit(f)/transpose(jvp())/"
    components, evidence = found(
        *layer(name),
        hlo(
            "down", "multiply", "act act", 1536, shape="f32[32,12]", op_name=back + "mul",
            frames=f"/u/model.py:5:{name}\n/u/model.py:90:main",
        ),
    )  # fmt: skip
    assert components["scores"] == "router"
    assert components["wide"] == "grouped_gemm"
    assert evidence["down"] == "structure"
    assert components["down"] in ("expert_elementwise", "unpermute")


def test_a_function_that_routes_alone_is_believed():
    rows = layer("route")[:7]
    noise = hlo(
        "noise", "rng", "", 256, shape="f32[16,4]", op_name="jit(f)/jvp()/random_bits",
        frames="/u/model.py:3:route",
    )  # fmt: skip
    components, evidence = found(*rows, noise)
    assert (components["noise"], evidence["noise"]) == ("router", "function")


def product_in(scope):
    """A feed-forward layer's gate: x times [8, 12] in a scope."""
    return (
        *layer("layer"),
        hlo("wg", "parameter", shape="f32[8,12]", parameter=4),
        hlo("g", "dot", "x wg", 768, shape="f32[16,12]", op_name=f"{PATH}{scope}/dot_general"),
    )


@pytest.mark.parametrize("scope", ["block/mlp/gate", "block/output/gate"])
def test_a_gate_of_a_feed_forward_layer_is_no_router(scope):
    components, _ = found(*product_in(scope))
    assert components["g"] in ("dense_mlp", "shared_expert")


def test_a_gate_in_a_moe_layer_is_its_router():
    components, evidence = found(*product_in("block/moe/gate"))
    assert (components["g"], evidence["g"]) == ("router", "scope")


def test_a_function_called_gate_that_normalises_is_no_router():
    at = {"frames": "/u/model.py:7:gate\n/u/model.py:90:main"}
    components, _ = found(
        *layer("layer"),
        hlo("square", "multiply", "x x", 512, shape="f32[16,8]", op_name=PATH + "mul", **at),
        hlo("mean", "reduce", "square", 64, shape="f32[16]", op_name=PATH + "reduce_sum", **at),
        hlo("root", "rsqrt", "mean", 64, shape="f32[16]", op_name=PATH + "rsqrt", **at),
        hlo("roots", "broadcast", "root", 512, shape="f32[16,8]", op_name=PATH + "mul", **at),
        hlo("normed", "multiply", "x roots", 512, shape="f32[16,8]", op_name=PATH + "mul", **at),
    )
    assert {components[n] for n in ("square", "mean", "root", "normed")} == {"norm"}
