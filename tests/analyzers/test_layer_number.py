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
