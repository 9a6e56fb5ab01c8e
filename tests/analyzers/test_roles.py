"""What flows into an instruction, and what it feeds, tells its part: no name is in these programs.

D = 8 features, F = 12, E = 4 experts, 16 tokens, top-2.
"""

import pytest
from builders.programs import program
from builders.work import hlo

from moeprof.analyzers.classify.roles import find_roles

TOKENS = (
    hlo("ids", "parameter", shape="s32[16]", parameter=0),
    hlo("table", "parameter", shape="f32[50,8]", parameter=1),
    hlo("gate", "parameter", shape="f32[8,4]", parameter=2),
    hlo("up", "parameter", shape="f32[4,8,12]", parameter=3),
    hlo("down", "parameter", shape="f32[4,12,8]", parameter=4),
    hlo("x", "gather", "table ids", shape="f32[16,8]"),
    hlo("scores", "dot", "x gate", shape="f32[16,4]"),
    hlo("odds", "exponential", "scores", shape="f32[16,4]"),
)
CHOICE = hlo("chosen", "topk", "odds", shape="(f32[16,2], s32[16,2])", op_name="jit(f)/top_k")


def parts(*rows):
    """Component of each instruction by name, None where flow does not tell."""
    roles = find_roles(program(*rows))
    ops = roles.facts.values.ops
    return {
        op.name: role.component if role else None for op, role in zip(ops, roles.of, strict=True)
    }


def test_sorted_tokens_go_through_the_experts_and_back():
    found = parts(
        *TOKENS,
        CHOICE,
        hlo("which", "get-tuple-element", "chosen", shape="s32[16,2]", details="index=1"),
        hlo("flat", "reshape", "which", shape="s32[32]"),
        hlo("order", "sort", "flat", shape="s32[32]", details="dimensions=0"),
        hlo("rows", "gather", "x order", shape="f32[32,8]"),
        hlo("wide", "ragged-dot", "rows up flat", shape="f32[32,12]"),
        hlo("act", "tanh", "wide", shape="f32[32,12]"),
        hlo("narrow", "ragged-dot", "act down flat", shape="f32[32,8]"),
        hlo("zeros", "constant", shape="f32[16,8]"),
        hlo("back", "scatter", "zeros order narrow", shape="f32[16,8]"),
        hlo("out", "add", "x back", shape="f32[16,8]"),
    )
    assert found["x"] == "embedding"
    assert {found[n] for n in ("scores", "odds", "chosen")} == {"router"}
    assert {found[n] for n in ("order", "rows")} == {"permute"}
    assert {found[n] for n in ("wide", "narrow")} == {"grouped_gemm"}
    assert found["act"] == "expert_elementwise"
    assert {found[n] for n in ("back", "out")} == {"unpermute"}


def test_one_hot_products_move_tokens_to_slots_and_back():
    """[16, 4, 5] masks of 5 slots for each expert, as in GShard."""
    found = parts(
        *TOKENS,
        hlo("best", "reduce", "odds", shape="(f32[16], s32[16])", details="dimensions=1"),
        hlo("which", "get-tuple-element", "best", shape="s32[16]", details="index=1"),
        hlo("hot", "compare", "which", shape="pred[16,4]"),
        hlo("mask", "convert", "hot", shape="f32[16,4,5]"),
        hlo("sent", "dot", "mask x", shape="f32[4,5,8]"),
        hlo("wide", "dot", "sent up", shape="f32[4,5,12]"),
        hlo("act", "tanh", "wide", shape="f32[4,5,12]"),
        hlo("narrow", "dot", "act down", shape="f32[4,5,8]"),
        hlo("back", "dot", "mask narrow", shape="f32[16,8]"),
        hlo("out", "add", "x back", shape="f32[16,8]"),
    )
    assert {found[n] for n in ("best", "hot", "mask")} == {"router"}
    assert found["sent"] == "permute"
    assert {found[n] for n in ("wide", "narrow")} == {"grouped_gemm"}
    assert {found[n] for n in ("back", "out")} == {"unpermute"}


def test_exchanges_are_told_by_what_they_carry():
    """Tokens on their way out and back, and a table of the router, s32 [4, 4]."""
    found = parts(
        *TOKENS,
        CHOICE,
        hlo("which", "get-tuple-element", "chosen", shape="s32[16,2]", details="index=1"),
        hlo("counts", "reduce", "which", shape="s32[4,4]"),
        hlo("told", "all-to-all", "counts", shape="s32[4,4]"),
        hlo("rows", "gather", "x which", shape="f32[32,8]"),
        hlo("sent", "all-to-all", "rows", shape="f32[32,8]"),
        hlo("wide", "dot", "sent up", shape="f32[32,12]"),
        hlo("narrow", "dot", "wide down", shape="f32[32,8]"),
        hlo("home", "all-to-all", "narrow", shape="f32[32,8]"),
        hlo("out", "reduce", "home", shape="f32[16,8]"),
    )
    assert (found["told"], found["sent"], found["home"]) == ("router", "dispatch", "combine")


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_feed_forward_layer_beside_the_router_is_a_shared_expert(is_behind):
    """It reads what the router reads; one on another value is a layer without experts."""
    found = parts(
        *TOKENS,
        CHOICE,
        hlo("w1", "parameter", shape="f32[8,12]", parameter=5),
        hlo("w2", "parameter", shape="f32[12,8]", parameter=6),
        hlo("other", "tanh", "x", shape="f32[16,8]"),
        hlo("wide", "dot", f"{'x' if is_behind else 'other'} w1", shape="f32[16,12]"),
        hlo("act", "tanh", "wide", shape="f32[16,12]"),
        hlo("narrow", "dot", "act w2", shape="f32[16,8]"),
    )
    expected = "shared_expert" if is_behind else "dense_mlp"
    assert {found[n] for n in ("wide", "act", "narrow")} == {expected}


def test_narrow_projections_before_attention_are_attention():
    """Latent attention: 8 features to a latent of 3, a norm, and up again."""
    weights = [
        hlo(name, "parameter", shape=f"f32[{shape}]", parameter=10 + at)
        for at, (name, shape) in enumerate(
            {"dq": "8,3", "uq": "3,8", "k": "8,8", "v": "8,8", "o": "8,8"}.items()
        )
    ]
    found = parts(
        *TOKENS[:6],
        *weights,
        hlo("latent", "dot", "x dq", shape="f32[16,3]"),
        hlo("square", "multiply", "latent latent", shape="f32[16,3]"),
        hlo("mean", "reduce", "square", shape="f32[16]"),
        hlo("root", "rsqrt", "mean", shape="f32[16]"),
        hlo("wide_root", "broadcast", "root", shape="f32[16,3]"),
        hlo("normed", "multiply", "latent wide_root", shape="f32[16,3]"),
        hlo("q", "dot", "normed uq", shape="f32[16,8]"),
        hlo("keys", "dot", "x k", shape="f32[16,8]"),
        hlo("values", "dot", "x v", shape="f32[16,8]"),
        hlo("pairs", "dot", "q keys", shape="f32[16,16]"),
        hlo("soft", "exponential", "pairs", shape="f32[16,16]"),
        hlo("mixed", "dot", "soft values", shape="f32[16,8]"),
        hlo("out", "dot", "mixed o", shape="f32[16,8]"),
        hlo("sum", "add", "x out", shape="f32[16,8]"),
    )
    products = ("latent", "q", "keys", "values", "pairs", "mixed", "out")
    assert {found[n] for n in products} == {"attention"}
    assert {found[n] for n in ("square", "mean", "root", "normed")} == {"norm"}
    assert found["sum"] == "attention"


def test_products_that_a_compiler_joins_are_told_apart_by_their_slices():
    """Router and shared expert multiply the same tokens: 4 and 12 columns of 16."""
    found = parts(
        *TOKENS[:6],
        hlo("w1", "parameter", shape="f32[8,12]", parameter=5),
        hlo("both", "concatenate", "gate w1", shape="f32[8,16]", details="dimensions=1"),
        hlo("product", "dot", "x both", shape="f32[16,16]"),
        hlo("scores", "slice", "product", shape="f32[16,4]"),
        hlo("wide", "slice", "product", shape="f32[16,12]"),
        hlo("odds", "exponential", "scores", shape="f32[16,4]"),
        CHOICE,
        hlo("act", "tanh", "wide", shape="f32[16,12]"),
    )
    assert {found[n] for n in ("scores", "odds", "chosen")} == {"router"}
    assert {found[n] for n in ("product", "wide", "act")} == {"shared_expert"}


def test_each_token_s_own_copy_of_weights_belongs_to_the_experts():
    found = parts(
        *TOKENS,
        CHOICE,
        hlo("which", "get-tuple-element", "chosen", shape="s32[16,2]", details="index=1"),
        hlo("own", "gather", "up which", shape="f32[16,2,8,12]"),
        hlo("wide", "dot", "x own", shape="f32[16,2,12]"),
    )
    assert (found["own"], found["wide"]) == ("expert_elementwise", "grouped_gemm")


def test_arithmetic_behind_the_backward_pass_updates_weights():
    forward, backward = "jit(f)/jvp()/", "jit(f)/transpose(jvp())/"
    found = parts(
        hlo("x", "parameter", shape="s32[16]", parameter=0),
        hlo("w", "parameter", shape="f32[8,8]", parameter=1),
        hlo("m", "parameter", shape="f32[8,8]", parameter=2),
        hlo("y", "dot", "w w", shape="f32[8,8]", op_name=forward + "dot_general"),
        hlo("g", "dot", "w y", shape="f32[8,8]", op_name=backward + "dot_general"),
        hlo("old", "multiply", "m m", shape="f32[8,8]", op_name="jit(f)/mul"),
        hlo("new", "add", "old g", shape="f32[8,8]", op_name="jit(f)/add"),
        hlo("root", "tuple", "new", shape="(f32[8,8])", is_root=True),
    )
    assert {found[n] for n in ("old", "new")} == {"optimizer"}


@pytest.mark.parametrize("heads", [3, 4])
def test_heads_as_many_as_experts_are_no_experts(heads):
    """A weight [heads, 8, 2] whose heads become columns: [8, heads x 2]."""
    found = parts(
        *TOKENS,
        CHOICE,
        hlo("w", "parameter", shape=f"f32[{heads},8,2]", parameter=5),
        hlo("columns", "transpose", "w", shape=f"f32[8,{2 * heads}]"),
        hlo("q", "dot", "x columns", shape=f"f32[16,{2 * heads}]"),
    )
    assert found["q"] == "shared_expert"  # beside the router: no experts, whatever else


@pytest.mark.parametrize("layers", [3, 4])
def test_layers_as_many_as_experts_are_no_experts(layers):
    """Routers are stacked along layers; so is a matrix [8, 12] of every layer, of no expert."""
    stacked = [
        *TOKENS[:2],
        hlo("gates", "parameter", shape=f"f32[{layers},8,4]", parameter=2),
        hlo("mlp", "parameter", shape=f"f32[{layers},8,12]", parameter=3),
        hlo("ups", "parameter", shape=f"f32[{layers},4,8,12]", parameter=4),
    ]
    found = parts(
        *stacked,
        TOKENS[5],
        hlo("gate", "slice", "gates", shape="f32[8,4]"),
        hlo("own", "slice", "mlp", shape="f32[8,12]"),
        hlo("up", "slice", "ups", shape="f32[4,8,12]"),
        *TOKENS[6:],
        CHOICE,
        hlo("plain", "dot", "x own", shape="f32[16,12]"),
        hlo("repeated", "broadcast", "x", shape="f32[4,16,8]", details="dimensions=1,2"),
        hlo(
            "experts",
            "dot",
            "repeated up",
            shape="f32[4,16,12]",
            details="lhs_batch=0 rhs_batch=0 lhs_contracting=2 rhs_contracting=1",
        ),
    )
    assert (found["plain"], found["experts"]) == ("shared_expert", "grouped_gemm")


def test_a_choice_that_is_only_counted_is_an_accuracy():
    """The table has 50 rows, the head 48 columns: its width alone does not tell."""
    found = parts(
        *TOKENS[:2],
        hlo("wh", "parameter", shape="f32[8,48]", parameter=2),
        hlo("labels", "parameter", shape="s32[16]", parameter=3),
        TOKENS[5],
        hlo("logits", "dot", "x wh", shape="f32[16,48]"),
        hlo("best", "reduce", "logits", shape="(f32[16], s32[16])", op_name="jit(f)/argmax"),
        hlo("which", "get-tuple-element", "best", shape="s32[16]", details="index=1"),
        hlo("hit", "compare", "which labels", shape="pred[16]"),
        hlo("hits", "convert", "hit", shape="f32[16]"),
        hlo("rate", "reduce", "hits", shape="f32[]"),
        hlo("odds", "exponential", "logits", shape="f32[16,48]"),
        hlo("all", "reduce", "odds", shape="f32[16]"),
        hlo("logs", "log", "all", shape="f32[16]"),
    )
    assert found["logits"] == "head"
    assert found["odds"] == "loss"


def test_slots_that_mix_all_tokens_are_routing_and_no_attention():
    """Soft experts: [16, 8] x [8, 4, 2] scores, a softmax, and [4, 2, 8] slots for 4 experts."""
    along = "lhs_batch=0 rhs_batch=0 lhs_contracting=2 rhs_contracting=1"
    found = parts(
        *TOKENS[:2],
        hlo("phi", "parameter", shape="f32[8,4,2]", parameter=2),
        TOKENS[3],
        TOKENS[5],
        hlo("columns", "reshape", "phi", shape="f32[8,8]"),
        hlo("scores", "dot", "x columns", shape="f32[16,8]"),
        hlo("odds", "exponential", "scores", shape="f32[16,8]"),
        hlo("mixed", "dot", "odds x", shape="f32[8,8]"),
        hlo("slots", "reshape", "mixed", shape="f32[4,2,8]"),
        hlo("wide", "dot", "slots up", shape="f32[4,2,12]", details=along),
        hlo("act", "tanh", "wide", shape="f32[4,2,12]"),
    )
    assert {found[n] for n in ("scores", "odds")} == {"router"}
    assert found["mixed"] == "permute"
    assert found["wide"] == "grouped_gemm"


def test_examples_are_no_weights_and_their_first_product_embeds_them():
    """16 images of 6 numbers with 16 labels go in; the weights alone come back."""
    found = parts(
        hlo("images", "parameter", shape="f32[16,6]", parameter=0),
        hlo("labels", "parameter", shape="s32[16]", parameter=1),
        hlo("stem", "parameter", shape="f32[6,8]", parameter=2),
        hlo("w1", "parameter", shape="f32[8,12]", parameter=3),
        hlo("x", "dot", "images stem", shape="f32[16,8]"),
        hlo("wide", "dot", "x w1", shape="f32[16,12]"),
        hlo("act", "tanh", "wide", shape="f32[16,12]"),
        hlo("new1", "negate", "stem", shape="f32[6,8]"),
        hlo("new2", "negate", "w1", shape="f32[8,12]"),
        hlo("results", "tuple", "new1 new2", shape="(f32[6,8], f32[8,12])", is_root=True),
    )
    assert (found["x"], found["wide"]) == ("embedding", "dense_mlp")


def test_a_frozen_weight_is_a_weight_though_it_does_not_come_back():
    """Fine-tuning returns adapters alone; as many layers as examples would not be a batch."""
    rows = program(
        hlo("ids", "parameter", shape="s32[16,9]", parameter=0),
        hlo("frozen", "parameter", shape="f32[8,12]", parameter=1),
        hlo("adapter", "parameter", shape="f32[8,2]", parameter=2),
        hlo("images", "parameter", shape="f32[16,4]", parameter=3),
        hlo("new", "negate", "adapter", shape="f32[8,2]"),
        hlo("results", "tuple", "new", shape="(f32[8,2])", is_root=True),
    )
    assert rows.batches == {"images"}


def test_a_scaled_weight_and_one_kept_for_the_backward_pass_are_weights():
    found = find_roles(
        program(
            *TOKENS[:6],
            hlo("half", "constant", shape="f32[]"),
            hlo("halves", "broadcast", "half", shape="f32[8,4]"),
            hlo("scaled", "multiply", "gate halves", shape="f32[8,4]"),
            hlo("zeros", "broadcast", "half", shape="f32[3,8,4]"),
            hlo("at", "constant", shape="s32[]"),
            hlo("layer", "reshape", "scaled", shape="f32[1,8,4]"),
            hlo("kept", "dynamic-update-slice", "zeros layer at", shape="f32[3,8,4]"),
        )
    )
    origin = {
        op.name: o.name if o else None
        for op, o in zip(found.facts.values.ops, found.facts.origin, strict=True)
    }
    assert {origin[n] for n in ("scaled", "layer", "kept")} == {"gate"}


def test_cross_attention_reads_keys_of_another_stream():
    """Queries from x, keys and values from a memory; a bias by distance is no embedding."""
    found = parts(
        *TOKENS[:2],
        hlo("ids2", "parameter", shape="s32[16]", parameter=2),
        *(hlo(n, "parameter", shape="f32[8,8]", parameter=3 + i) for i, n in enumerate("qkvo")),
        hlo("near", "parameter", shape="f32[32,2]", parameter=7),
        TOKENS[5],
        hlo("memory", "gather", "table ids2", shape="f32[16,8]"),
        hlo("places", "iota", shape="s32[16,16]"),
        hlo("bias", "gather", "near places", shape="f32[16,16,2]"),
        hlo("flat", "reduce", "bias", shape="f32[16,16]"),
        hlo("queries", "dot", "x q", shape="f32[16,8]"),
        hlo("keys", "dot", "memory k", shape="f32[16,8]"),
        hlo("values", "dot", "memory v", shape="f32[16,8]"),
        hlo("pairs", "dot", "queries keys", shape="f32[16,16]"),
        hlo("biased", "add", "pairs flat", shape="f32[16,16]"),
        hlo("soft", "exponential", "biased", shape="f32[16,16]"),
        hlo("mixed", "dot", "soft values", shape="f32[16,8]"),
        hlo("out", "dot", "mixed o", shape="f32[16,8]"),
    )
    products = ("queries", "keys", "values", "pairs", "mixed", "out")
    assert {found[n] for n in products} == {"attention"}
    assert found["bias"] != "embedding"


def test_projections_that_are_multiplied_without_a_softmax_mix_tokens_too():
    """Linear attention: (q k) v, from the stream and back; a gated layer beside it is none."""
    found = parts(
        *TOKENS[:2],
        *(hlo(n, "parameter", shape="f32[8,8]", parameter=2 + i) for i, n in enumerate("qkvo")),
        TOKENS[5],
        hlo("w1", "parameter", shape="f32[8,12]", parameter=6),
        hlo("queries", "dot", "x q", shape="f32[16,8]"),
        hlo("keys", "dot", "x k", shape="f32[16,8]"),
        hlo("values", "dot", "x v", shape="f32[16,8]"),
        hlo("memory", "dot", "keys values", shape="f32[8,8]"),
        hlo("mixed", "dot", "queries memory", shape="f32[16,8]"),
        hlo("out", "dot", "mixed o", shape="f32[16,8]"),
        hlo("sum", "add", "x out", shape="f32[16,8]"),
        hlo("wide", "dot", "sum w1", shape="f32[16,12]"),
    )
    products = ("queries", "keys", "values", "memory", "mixed", "out")
    assert {found[n] for n in products} == {"attention"}
    assert found["wide"] == "dense_mlp"


def test_heads_that_a_product_goes_along_are_attention_though_they_are_as_many_as_experts():
    """Projections [4, 8, 2] of 4 heads, multiplied head by head, where there are 4 experts."""
    along = "lhs_batch=0 rhs_batch=0 lhs_contracting=2 rhs_contracting=1"
    pairs = "lhs_batch=0 rhs_batch=0 lhs_contracting=2 rhs_contracting=2"
    found = parts(
        *TOKENS,
        CHOICE,
        *(hlo(n, "parameter", shape="f32[4,8,2]", parameter=5 + i) for i, n in enumerate("qkv")),
        hlo("repeated", "broadcast", "x", shape="f32[4,16,8]", details="dimensions=1,2"),
        *(hlo(f"{n}s", "dot", f"repeated {n}", shape="f32[4,16,2]", details=along) for n in "qkv"),
        hlo("pairs", "dot", "qs ks", shape="f32[4,16,16]", details=pairs),
        hlo("soft", "exponential", "pairs", shape="f32[4,16,16]"),
        hlo("mixed", "dot", "soft vs", shape="f32[4,16,2]", details=along),
    )
    assert {found[n] for n in ("qs", "ks", "vs", "pairs", "mixed")} == {"attention"}
