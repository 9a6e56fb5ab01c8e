"""A program whose names say nothing: what it computes must tell."""

from builders.hlo import computation, dot, hlo_proto, op
from builders.programs import program
from builders.trace import trace_of
from builders.work import hlo

from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.roles import find_roles
from moeprof.hlo.program import programs_in

FILE = "prog.py"


def at(number: int, primitive: str, function: str = "f"):
    """Traced at a line of `function`, which line 90 of the script called."""
    frames = [(FILE, number, function), (FILE, 90, "main")]
    return {"op_name": f"jit(s)/{primitive}", "frames": frames}


PROGRAM = hlo_proto(
    computation(
        "main",
        op("tokens", "parameter", "s32[16]", parameter=0),
        op("table", "parameter", "f32[50,8]", op_name="p['a']", parameter=1),
        op("w", "parameter", "f32[4,8,6]", op_name="p['b']", parameter=2),
        op("r", "parameter", "f32[8,4]", op_name="p['c']", parameter=3),
        op(
            "x",
            "gather",
            "f32[16,8]",
            "table",
            "tokens",
            **at(3, "gather", "g"),
        ),
        op("square", "multiply", "f32[16,8]", "x", "x", **at(5, "mul", "h")),
        op("mean", "reduce", "f32[16]", "square", **at(5, "reduce_sum", "h")),
        op("inverse", "rsqrt", "f32[16]", "mean", **at(5, "rsqrt", "h")),
        dot("scores", "f32[16,4]", "x", "r", **at(20, "dot_general")),
        op(
            "chosen",
            "custom-call",
            "(f32[16,2], s32[16,2])",
            "scores",
            target="TopK",
            **at(21, "top_k"),
        ),
        op("weights", "exponential", "f32[16,2]", "scores", **at(22, "exp")),
        op("sorted", "sort", "s32[32]", "chosen", **at(23, "sort")),
        op("rows", "gather", "f32[4,8,8]", "x", "sorted", **at(24, "gather")),
        op("sent", "all-to-all", "f32[4,8,8]", "rows", **at(25, "all_to_all")),
        dot("up", "f32[4,8,6]", "sent", "w", batch=True, **at(26, "dot_general")),
        op("act", "maximum", "f32[4,8,6]", "up", **at(26, "max")),
        op("back", "all-to-all", "f32[4,8,6]", "act", **at(27, "all_to_all")),
        op("unsorted", "gather", "f32[16,2,6]", "back", **at(28, "gather")),
        dot(
            "q_k",
            "f32[4,4,4]",
            "unsorted",
            "unsorted",
            batch=True,
            **at(40, "dot_general", "m"),
        ),
        op("e", "exponential", "f32[4,4,4]", "q_k", **at(41, "exp", "m")),
        dot(
            "a_v",
            "f32[4,4,4]",
            "e",
            "unsorted",
            batch=True,
            **at(42, "dot_general", "m"),
        ),
        dot(
            "logits",
            "f32[16,50]",
            "unsorted",
            "table",
            **at(50, "dot_general", "g"),
        ),
        op("p", "exponential", "f32[16,50]", "logits", **at(60, "exp", "l")),
        op("lse", "log", "f32[16]", "p", **at(60, "log", "l")),
        op("new", "subtract", "f32[8,4]", "r", "scores", **at(70, "sub", "u")),
    )
)


def found(tmp_path):
    classes = classify(programs_in(trace_of(tmp_path, PROGRAM).hlo_ops, [7])).pandas()
    return dict(zip(classes["op"], classes["component"], strict=True))


def test_a_layer_is_told_by_its_top_k_and_its_expert_weights(tmp_path):
    component = found(tmp_path)
    assert component["scores"] == component["chosen"] == "router"
    assert component["weights"] == "router"
    assert component["sorted"] == component["rows"] == "permute"
    assert component["sent"] == "dispatch"
    assert component["up"] == "grouped_gemm"
    assert component["act"] == "expert_elementwise"
    assert component["back"] == "combine"
    assert component["unsorted"] == "unpermute"


def test_attention_is_a_softmax_between_two_products_of_activations(tmp_path):
    component = found(tmp_path)
    assert {component[name] for name in ("q_k", "e", "a_v")} == {"attention"}


def test_a_norm_divides_by_a_root_mean_square(tmp_path):
    component = found(tmp_path)
    assert {component[name] for name in ("square", "mean", "inverse")} == {"norm"}


def test_the_vocabulary_tells_embedding_head_and_loss(tmp_path):
    component = found(tmp_path)
    assert component["x"] == "embedding"
    assert component["logits"] == "head"
    assert component["p"] == component["lse"] == "loss"


def test_scores_of_token_pairs_as_many_as_the_vocabulary_are_no_head():
    """16 tokens and a vocabulary of 16: scores [16, 16] and logits [16, 16] look alike."""
    made = program(
        hlo("ids", "parameter", shape="s32[16]", parameter=0),
        hlo("table", "parameter", shape="f32[16,8]", parameter=1),
        hlo("x", "gather", "table ids", shape="f32[16,8]"),
        hlo("pairs", "dot", "x x", shape="f32[16,16]"),
        hlo("soft", "exponential", "pairs", shape="f32[16,16]"),
        hlo("mixed", "dot", "soft x", shape="f32[16,8]"),
        hlo("o", "parameter", shape="f32[8,8]", parameter=2),
        hlo("out", "dot", "mixed o", shape="f32[16,8]"),
        hlo("logits", "dot", "out table", shape="f32[16,16]"),
        hlo("odds", "exponential", "logits", shape="f32[16,16]"),
        hlo("lse", "log", "odds", shape="f32[16]"),
    )
    roles = find_roles(made)
    found = {op.name: role for op, role in zip(roles.facts.values.ops, roles.of, strict=True)}
    asked = ("pairs", "soft", "mixed", "logits", "lse")
    assert [getattr(found[name], "component", None) for name in asked] == [
        *("attention", "attention", "attention", "head", "loss")
    ]


def test_the_gradient_of_a_routing_weight_is_no_product_of_the_experts():
    """D = 8, F = 12, 4 experts, 16 tokens, top-2; what the compiler makes anew has no name."""
    forward, backward = "jit(f)/jvp()/", "jit(f)/transpose(jvp())/"

    def product(name, given, shape, contracting, **named):
        left, right = contracting
        along = f"lhs_batch=0 rhs_batch=0 lhs_contracting={left} rhs_contracting={right}"
        return hlo(name, "dot", given, shape=shape, details=along, **named)

    named = {"op_name": f"{forward}dot_general"}
    rows = (
        hlo("ids", "parameter", shape="s32[16]", parameter=0),
        hlo("table", "parameter", shape="f32[50,8]", parameter=1),
        hlo("gate", "parameter", shape="f32[8,4]", parameter=2),
        hlo("up", "parameter", shape="f32[4,8,12]", parameter=3),
        hlo("down", "parameter", shape="f32[4,12,8]", parameter=4),
        hlo("x", "gather", "table ids", shape="f32[16,8]", op_name=f"{forward}gather"),
        hlo("scores", "dot", "x gate", shape="f32[16,4]", op_name=f"{forward}dot_general"),
        hlo("chosen", "topk", "scores", shape="(f32[16,2], s32[16,2])",
            op_name=f"{forward}top_k"),
        hlo("which", "get-tuple-element", "chosen", shape="s32[16,2]", details="index=1"),
        hlo("rows", "gather", "x which", shape="f32[4,8,8]", op_name=f"{forward}gather"),
        product("wide", "rows up", "f32[4,8,12]", (2, 1), **named),
        product("narrow", "wide down", "f32[4,8,8]", (2, 1), **named),
        hlo("y", "gather", "narrow which", shape="f32[16,2,8]", op_name=f"{forward}gather"),
        hlo("sum", "reduce", "y", shape="f32[16,8]", op_name=f"{forward}reduce_sum"),
        hlo("z", "add", "x sum", shape="f32[16,8]", op_name=f"{forward}add"),
        hlo("dz", "negate", "z", shape="f32[16,8]", op_name=f"{backward}neg"),
        product("dchoice", "y dz", "f32[16,2]", (2, 1)),
        hlo("dy", "scatter", "y which dz", shape="f32[4,8,8]", op_name=f"{backward}scatter-add"),
        product("ddown", "wide dy", "f32[4,12,8]", (1, 1)),
    )  # fmt: skip
    found = classify({7: program(*rows)}).pandas().set_index("op")["component"]
    assert (found["wide"], found["narrow"], found["ddown"]) == ("grouped_gemm",) * 3
    assert found["dchoice"] not in ("grouped_gemm", "expert_elementwise")


def test_what_replaces_a_parameter_outside_the_derivative_is_the_optimizer(tmp_path):
    assert found(tmp_path)["new"] == "optimizer"


NAMELESS = hlo_proto(
    computation(
        "wrapped",
        op("p", "parameter", "f32[4,8]"),
        op("send", "ragged-all-to-all", "f32[4,8]", "p"),
    ),
    computation(
        "main",
        op("x", "parameter", "f32[4,8]"),
        op("rows", "sort", "f32[4,8]", "x", op_name="jit(s)/jvp()/moe/permute/gather"),
        op("view", "bitcast", "f32[4,8]", "rows"),
        op("start", "async-start", "f32[4,8]", "view", called=("wrapped",)),
        op("done", "async-done", "f32[4,8]", "start"),
        op("up", "custom-call", "f32[4,8]", "done", target="ck_grouped_gemm"),
        op("back", "all-to-all", "f32[4,8]", "up"),
        op("far", "all-to-all", "f32[4,8]", "x"),
    ),
)


def test_an_exchange_without_a_name_is_told_by_what_it_sends(tmp_path):
    classes = (
        classify(programs_in(trace_of(tmp_path, NAMELESS).hlo_ops, [7])).pandas().set_index("op")
    )
    assert classes.loc["send", ["component", "phase"]].tolist() == ["dispatch", "forward"]
    assert classes["component"]["back"] == "combine"
    assert classes["component"]["far"] == "collectives"


def test_an_op_wrapped_to_run_at_once_with_others_has_its_wrapper_s_name(tmp_path):
    program = hlo_proto(
        computation("wrapped", op("sum", "all-reduce", "f32[4]")),
        computation(
            "main",
            op("start", "async-start", "f32[4]", called=("wrapped",), **at(5, "moe/router/psum")),
        ),
    )
    classes = (
        classify(programs_in(trace_of(tmp_path, program).hlo_ops, [7])).pandas().set_index("op")
    )
    assert classes["component"]["sum"] == "router"
