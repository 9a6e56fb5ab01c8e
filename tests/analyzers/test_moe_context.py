"""A MoE layer inside a block that is called "mlp": the block's name says nothing of its inside."""

import pytest
from builders.hlo import computation, dot, hlo_proto, op
from builders.trace import trace_of

from moeprof.analyzers.classify import classify
from moeprof.hlo.program import programs_in

LAYER = [
    ("layers/moe.py", 30, "RoutedMoE.dense_matmul"),
    ("layers/moe.py", 20, "RoutedMoE.__call__"),
    ("models/deepseek.py", 10, "DeepSeekMoELayer.mlp_op"),
    ("train.py", 1, "main"),
]
EINSUM = "jit(s)/jvp()/while/body/wi_0/EBCM,EMH -> EBCH/dot_general"
TOKENS, WEIGHT = "bf16[4,16,8]", "bf16[4,8,6]"


def component(tmp_path, instruction):
    program = hlo_proto(
        computation(
            "main",
            op("x", "parameter", TOKENS),
            op("w", "all-gather", WEIGHT),
            instruction,
        )
    )
    classes = (
        classify(programs_in(trace_of(tmp_path, program).hlo_ops, [7])).pandas().set_index("op")
    )
    return classes.loc[instruction.name, "component"]


def product(frames=(), op_name=EINSUM):
    return dot("p", "bf16[4,16,6]", "x", "w", batch=True, frames=frames, op_name=op_name)


def test_an_einsum_over_experts_in_a_moe_class_is_a_grouped_gemm(tmp_path):
    assert component(tmp_path, product(LAYER)) == "grouped_gemm"


@pytest.mark.parametrize("path", ["mlp/moe/", "attention_block/moe_layer/"])
def test_a_scope_around_the_layer_does_not_name_it(tmp_path, path):
    name = f"jit(s)/jvp()/{path}dot_general"
    assert component(tmp_path, product(op_name=name)) == "grouped_gemm"


def test_the_same_as_a_library_call_is_a_grouped_gemm(tmp_path):
    call = op(
        "p", "custom-call", "(bf16[4,16,6], u8[64])", "x", "w",
        target="__cublas$lt$matmul", op_name=EINSUM, frames=LAYER,
    )  # fmt: skip
    assert component(tmp_path, call) == "grouped_gemm"


def test_gathering_the_experts_weights_is_a_weight_gather(tmp_path):
    gather = op("g", "all-gather", WEIGHT, "x", op_name="jit(s)/jvp()/moe/add", frames=LAYER)
    assert component(tmp_path, gather) == "weight_gather"


def test_an_activation_named_ffn_in_a_moe_class_is_no_dense_layer(tmp_path):
    frames = [("layers/moe.py", 40, "RoutedMoE.apply_ffn_activation"), *LAYER]
    act = op("a", "multiply", TOKENS, "x", "x", op_name="jit(s)/jvp()/ffn_act/mul", frames=frames)
    assert component(tmp_path, act) == "expert_elementwise"


def test_a_dense_layer_beside_the_moe_layer_stays_dense(tmp_path):
    frames = [("layers/mlp.py", 5, "MlpBlock.__call__"), ("train.py", 1, "main")]
    name = "jit(s)/jvp()/mlp/dot_general"
    assert component(tmp_path, product(frames, name)) == "dense_mlp"


def of_argument(tmp_path, opcode, scope, name="", frames=()):
    """Part of a collective that reads an argument of the program, called `name`, through a copy."""
    program = hlo_proto(
        computation(
            "main",
            op("arg", "parameter", TOKENS, op_name=name),
            op("view", "transpose", TOKENS, "arg"),
            op("c", opcode, TOKENS, "view", op_name=f"jit(f)/shard_map/{scope}", frames=frames),
        )
    )
    classes = (
        classify(programs_in(trace_of(tmp_path, program).hlo_ops, [7])).pandas().set_index("op")
    )
    return classes.loc["c", "component"]


@pytest.mark.parametrize("opcode", ["all-to-all", "ragged-all-to-all", "all-gather"])
@pytest.mark.parametrize("name", ["", "x", "tokens", "batch['hidden']"])
def test_an_exchange_of_an_argument_is_what_its_scope_says(tmp_path, opcode, name):
    assert of_argument(tmp_path, opcode, "moe/dispatch/send", name) == "dispatch"
    assert of_argument(tmp_path, opcode, "moe/combine/send", name) == "combine"


def test_an_all_to_all_in_a_function_that_dispatches_is_a_dispatch(tmp_path):
    frames = [("bench.py", 9, "moe_dispatch"), ("bench.py", 30, "main")]
    assert of_argument(tmp_path, "all-to-all", "all_to_all", "x", frames) == "dispatch"
    assert of_argument(tmp_path, "all-gather", "all_gather", "x", frames) == "weight_gather"


@pytest.mark.parametrize(
    "name", ["params['mlp']['w_up']", "state.params['moe']['wi_0']", "w1", "up_proj"]
)
def test_weights_that_are_gathered_in_a_dispatch_stay_weights(tmp_path, name):
    assert of_argument(tmp_path, "all-gather", "moe/dispatch/all_gather", name) == "weight_gather"
    assert of_argument(tmp_path, "all-to-all", "moe/dispatch/all_to_all", name) == "collectives"


def test_an_argument_gathered_for_the_experts_stays_a_weight(tmp_path):
    assert of_argument(tmp_path, "all-gather", "moe/experts/all_gather") == "weight_gather"
    assert of_argument(tmp_path, "all-to-all", "moe/experts/all_to_all") == "collectives"


def test_a_gather_that_was_merged_of_several_parts_stays_a_weight_gather(tmp_path):
    scope = "(moe/dispatch/all_gather:shared_expert/all_gather)"
    assert of_argument(tmp_path, "all-gather", scope) == "weight_gather"
