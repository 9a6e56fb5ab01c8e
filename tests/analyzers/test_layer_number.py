import pytest

from moeprof.analyzers.classify.layer_number import layer_number


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
