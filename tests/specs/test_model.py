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


def test_divisors_of_sixty():
    assert divisors(60) == (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
