from __future__ import annotations

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec, divisors

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


def test_divisors_of_sixty():
    assert divisors(60) == (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
