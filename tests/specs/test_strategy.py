from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.errors import SpecError
from moeprof.specs.strategy import SPARSE, Strategy, expert_capacity, parse_strategy


@pytest.mark.parametrize("name", [*SPARSE, "dense-cf1.25", "dense-cf0.5", "dense-cf4"])
def test_a_name_survives_the_round_trip(name):
    assert parse_strategy(name).name == name


def test_dense_alone_holds_a_factor():
    assert parse_strategy("dense-cf1.25") == Strategy("dense", 1.25)
    assert parse_strategy("sparse-gmm") == Strategy("sparse-gmm", None)


@pytest.mark.parametrize(
    "text", ["dense", "dense-cf", "dense-cf0", "dense-cf-1", "dense-cfinf", "sparse", "gmm"]
)
def test_another_name_lists_the_valid_ones(text):
    with pytest.raises(
        SpecError, match=r"dense-cfX.*sparse-ragged-dot, sparse-gmm or sparse-gmm-d"
    ):
        parse_strategy(text)


@pytest.mark.parametrize(("factor", "capacity"), [(1.25, 160), (2.0, 256), (4.0, 512)])
def test_deepseek_capacities(factor, capacity):
    # 4096 · 8 / 256 = 128 tokens per expert and sequence.
    assert expert_capacity(4096, 8, 256, factor) == capacity


@given(st.integers(1, 64), st.integers(1, 8), st.integers(8, 64), st.floats(0.01, 8))
def test_an_expert_takes_at_least_one_token(sequence, top_k, experts, factor):
    assert expert_capacity(sequence, top_k, experts, factor) >= 1
