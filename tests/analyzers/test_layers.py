"""Kinds of layers, told from programs of a few instructions written by hand, and their numbers."""

import pytest
from builders.programs import program
from builders.work import Row, hlo

from moeprof.analyzers.classify.layers import layer_kinds, layer_number
from moeprof.analyzers.classify.values import Flow

LAYER_KINDS = {"embedding", "dense_layer", "moe_layer", "layer", "head", "optimizer", "outside"}


def kinds(*rows: Row, **components: str) -> dict[str, str]:
    """Kind of layer by op; `components` are those of the ops that have one."""
    made = program(*rows)
    labels = {op: (component, "forward") for op, component in components.items()}
    found = layer_kinds(made, Flow(made), labels, list(made.ops.values()))
    assert set(found.values()) <= LAYER_KINDS
    return found


def scoped(op: str, path: str, opcode: str = "dot", **more: object) -> Row:
    return hlo(op, opcode, op_name=f"jit(s)/jvp()/{path}/prim", **more)


def framed(op: str, *functions: str, **more: object) -> Row:
    """An op of functions of one file, innermost first."""
    return hlo(op, "dot", frames="\n".join(f"m.py:1:{name}" for name in functions), **more)


def test_parts_that_stand_in_one_place_tell_the_layer():
    found = kinds(
        *(hlo(op, "dot") for op in ("e", "d", "s", "t", "h", "l", "o")),
        **{"e": "grouped_gemm", "d": "dense_mlp", "s": "shared_expert", "t": "embedding"},
        **{"h": "head", "l": "loss", "o": "optimizer"},
    )
    assert found == {
        **{"e": "moe_layer", "d": "dense_layer", "s": "moe_layer", "t": "embedding"},
        **{"h": "head", "l": "head", "o": "optimizer"},
    }


def test_attention_belongs_to_the_only_kind_of_layer_there_is():
    rows = (hlo("e", "dot"), hlo("a", "dot"))
    assert kinds(*rows, e="router", a="attention")["a"] == "moe_layer"


def test_attention_of_two_kinds_of_layers_without_a_context_is_in_a_layer():
    rows = (hlo("e", "dot"), hlo("d", "dot"), hlo("a", "dot"))
    assert kinds(*rows, e="router", d="dense_mlp", a="attention")["a"] == "layer"


def test_a_scope_tells_whose_attention_it_is():
    found = kinds(
        scoped("e", "moe_layers/experts"),
        scoped("d", "dense_layers/mlp"),
        scoped("ae", "moe_layers/attention"),
        scoped("ad", "dense_layers/attention"),
        **{"e": "grouped_gemm", "d": "dense_mlp", "ae": "attention", "ad": "attention"},
    )
    assert (found["ae"], found["ad"]) == ("moe_layer", "dense_layer")


def test_a_scope_of_both_tells_nothing():
    found = kinds(
        scoped("e", "layers/experts"),
        scoped("d", "layers/mlp"),
        scoped("a", "layers/attention"),
        **{"e": "grouped_gemm", "d": "dense_mlp", "a": "attention"},
    )
    assert found["a"] == "layer"


def test_a_loop_over_layers_of_one_kind_tells():
    found = kinds(
        hlo("dense", "while", called="body_d"),
        hlo("sparse", "while", called="body_e"),
        hlo("d", "dot", computation="body_d"),
        hlo("ad", "dot", computation="body_d"),
        hlo("e", "dot", computation="body_e"),
        hlo("ae", "dot", computation="body_e"),
        **{"e": "grouped_gemm", "d": "dense_mlp", "ae": "attention", "ad": "attention"},
    )
    assert (found["ae"], found["ad"]) == ("moe_layer", "dense_layer")


def test_the_function_of_a_layer_tells():
    found = kinds(
        framed("e", "experts", "sparse_block", "model"),
        framed("d", "mlp", "dense_block", "model"),
        framed("ae", "attend", "sparse_block", "model"),
        framed("ad", "attend", "dense_block", "model"),
        **{"e": "grouped_gemm", "d": "dense_mlp", "ae": "attention", "ad": "attention"},
    )
    assert (found["ae"], found["ad"]) == ("moe_layer", "dense_layer")


def test_a_helper_that_both_attention_and_one_kind_of_layer_call_tells_nothing():
    """Experts multiply in their own way, dense layers and attention through ``linear``."""
    found = kinds(
        framed("e", "experts", "sparse_block", "model"),
        framed("d", "linear", "mlp", "dense_block", "model"),
        framed("ae", "linear", "attend", "sparse_block", "model"),
        framed("ad", "linear", "attend", "dense_block", "model"),
        **{"e": "grouped_gemm", "d": "dense_mlp", "ae": "attention", "ad": "attention"},
    )
    assert (found["ae"], found["ad"]) == ("moe_layer", "dense_layer")


def test_a_chain_that_names_functions_twice_makes_no_helper_of_the_layer():
    """As JAX joins tracebacks of what is traced later."""
    found = kinds(
        framed("e", "experts", "sparse_block", "experts", "sparse_block", "model"),
        framed("d", "mlp", "dense_block", "model"),
        framed("ae", "attend", "sparse_block", "model"),
        **{"e": "grouped_gemm", "d": "dense_mlp", "ae": "attention"},
    )
    assert found["ae"] == "moe_layer"


def test_what_has_no_context_goes_with_its_readers():
    found = kinds(
        hlo("x", "add"),
        hlo("cast", "convert", "x"),
        hlo("e", "dot", "cast"),
        hlo("lone", "add"),
        e="grouped_gemm",
    )
    assert found["cast"] == "moe_layer"
    assert "lone" not in found


@pytest.mark.parametrize(
    ("op_name", "number"),
    [
        ("jit(step)/jvp(layers_7)/moe/dot_general", 7),
        ("jit(f)/jit(main)/h/11/mlp/dot_general", 11),
        ("jit(f)/transpose(jvp(T))/decoder/moe_layers_4/DeepSeekMoeBlock_0/dot", 4),
        ("jit(f)/model/layers[12]/moe/dot", 12),
        ("jit(f)/DecoderLayer_3/MlpBlock_0/dot", 3),
        ("jit(f)/decoder/MoeBlock_0/dot", None),  # Flax counts modules of a kind
        ("jit(f)/decoder/layers/self_attention/dot", None),  # all layers, in a loop
        ("", None),
    ],
)
def test_the_number_of_a_layer_is_read_from_its_scope(op_name, number):
    assert layer_number(op_name) == number


@pytest.mark.parametrize(
    "word", ["a" * 5000, "a_" * 2500, "layer" * 1000 + "x", "gather_masked_logits_across_x"]
)
def test_a_long_scope_takes_no_longer_than_it_is_long(word):
    assert layer_number(f"jit(f)/{word}/add") is None


@pytest.mark.parametrize(
    ("scope", "number"),
    [
        ("moe_layers_4", 4),
        ("decoderlayer_3", 3),
        ("a_b_block7", 7),
        ("layer1", 1),
        ("_layer_1", None),
        ("a__layer_1", None),
        ("layer_a_1", None),
    ],
)
def test_words_before_a_layer_are_parted_by_one_underscore(scope, number):
    assert layer_number(f"jit(f)/{scope}/add") == number
