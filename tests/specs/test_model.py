from __future__ import annotations

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.specs.model import GqaSpec, LinearSpec, MlaSpec, ModelSpec, divisors

SMALL = ModelSpec(
    layers=2,
    hidden=8,
    heads=4,
    attention=GqaSpec(kv_heads=2, head_dim=4),
    experts=4,
    top_k=2,
    moe_ffn=8,
    vocab=16,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 5}, "top_k 5 is more than the 4 experts.*1 to 4"),
        ({"hidden": 0}, "model hidden: expected at least 1, found 0"),
        ({"dense_layers": 2, "dense_ffn": 8}, "2 dense layers of 2.*0 to 1"),
        ({"dense_layers": 1}, "1 dense layers need dense_ffn > 0, found 0"),
        ({"hidden": 8.0}, r"model hidden: expected an integer, found 8\.0"),
        ({"top_k": True}, "model top_k: expected an integer, found True"),
        ({"dense_layers": -1}, "model dense_layers: expected at least 0, found -1"),
        ({"dense_layers": 0.0}, r"model dense_layers: expected an integer, found 0\.0"),
        ({"routed_scale": 0.0}, r"model routed_scale: expected a positive number, found 0\.0"),
        ({"norm_epsilon": float("nan")}, "model norm_epsilon: expected a positive number.*nan"),
        ({"rope_theta": float("inf")}, "model rope_theta: expected a positive number.*inf"),
        ({"rope_theta": "1e4"}, "model rope_theta: expected a positive number, found '1e4'"),
        ({"tied_head": 1}, "model tied_head: expected true or false, found 1"),
        ({"compute_dtype": "int8"}, "expected one of float32, bfloat16, float16, found 'int8'"),
        (
            {"attention": GqaSpec(kv_heads=3, head_dim=4)},
            "4 heads cannot share 3.*kv_heads from 1, 2, 4",
        ),
        ({"experts": 0}, "without experts expected top_k 0, moe_ffn 0 and 2 dense layers, found"),
        ({"moe_ffn": 0}, "model moe_ffn: expected at least 1, found 0"),
        ({"qk_norm": "some"}, "qk_norm: expected one of none, head, all, found 'some'"),
        ({"shared_experts": 0, "shared_ffn": 8}, "shared_ffn 8 needs shared_experts"),
        ({"linear_layers": 1}, "expected linear_layers and linear together, found 1"),
        (
            {"layers": 8, "linear_layers": 5, "linear": LinearSpec(1, 4, 1, 4)},
            "5 linear layers of 8 do not leave.*from 0, 4, 6, 7",
        ),
        (
            {"layers": 6, "dense_layers": 2, "dense_ffn": 8, "is_interleaved": True},
            "4 MoE layers cannot be spread evenly over 6.*from 1, 2, 3, 6",
        ),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_the_choices(changes, message):
    with pytest.raises(SpecError, match=message):
        dataclasses.replace(SMALL, **changes)


def test_rotary_features_come_in_pairs():
    with pytest.raises(SpecError, match=r"rope_dim.*even number, found 3"):
        MlaSpec(q_lora_rank=4, kv_lora_rank=4, nope_dim=4, rope_dim=3, value_dim=4)


@pytest.mark.parametrize("head_dim", [4.0, float("nan"), "4"])
def test_a_width_that_is_no_integer_is_refused(head_dim):
    with pytest.raises(SpecError, match="GQA head_dim: expected an integer"):
        GqaSpec(kv_heads=2, head_dim=head_dim)


def test_a_number_may_be_written_as_an_integer():
    assert dataclasses.replace(SMALL, rope_theta=10_000).rope_theta == 10_000


def test_divisors_of_a_square_a_prime_and_one():
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(999_999_937) == (1, 999_999_937)
    assert divisors(1) == (1,)


def test_divisors_of_sixty():
    assert divisors(60) == (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)


def test_leading_dense_layers_come_before_those_with_experts():
    model = dataclasses.replace(SMALL, layers=4, dense_layers=1, dense_ffn=8)
    assert model.moe_layer_indices == (1, 2, 3)


def test_interleaved_models_have_experts_in_every_second_layer():
    model = dataclasses.replace(SMALL, layers=4, dense_layers=2, dense_ffn=8, is_interleaved=True)
    assert model.moe_layer_indices == (1, 3)


def test_every_fourth_layer_of_a_hybrid_has_a_softmax():
    model = dataclasses.replace(
        SMALL, layers=8, linear_layers=6, linear=LinearSpec(1, 4, 2, 4, conv_width=4)
    )
    assert model.linear_layer_indices == (0, 1, 2, 4, 5, 6)


def test_a_dense_model_has_no_experts_shared_or_routed():
    model = dataclasses.replace(SMALL, experts=0, top_k=0, moe_ffn=0, dense_layers=2, dense_ffn=8)
    assert (model.moe_layers, model.moe_layer_indices, model.shared_width) == (0, (), 0)


def test_shared_experts_may_have_a_width_of_their_own():
    assert dataclasses.replace(SMALL, shared_experts=2).shared_width == 16
    assert dataclasses.replace(SMALL, shared_experts=2, shared_ffn=20).shared_width == 20


def test_an_unknown_kind_of_linear_attention_is_refused():
    with pytest.raises(SpecError, match="expected gated-deltanet or lightning, found 'rwkv'"):
        LinearSpec(1, 4, 1, 4, kind="rwkv")
