from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.model.layers import Routing
from moeprof.model.layout import Job
from moeprof.model.strategies.dense import capacity_masks, run_experts
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

from .builders import tiny

pytestmark = pytest.mark.quick

# One sequence of 4 tokens, 2 experts, one each: tokens 0, 1, 3 want expert 0, token 2 expert 1.
MODEL = tiny(experts=2, top_k=1, hidden=2)
WANTED = Routing(jnp.array([[0], [0], [1], [0]]), jnp.array([[1.0], [2.0], [3.0], [4.0]]))


def job(factor: float) -> Job:
    return Job(MODEL, ParallelPlan(), parse_strategy(f"dense-cf{factor:g}"), "cpu")


def test_the_first_tokens_fill_an_expert_and_the_rest_are_dropped():
    # Capacity ceil(4 · 1 / 2) · 1 = 2: token 3 finds expert 0 full.
    is_sent, share = capacity_masks(WANTED, (1, 4, 2), job(1.0))
    assert is_sent.shape == (1, 4, 2, 2)
    sent = {tuple(map(int, index)) for index in np.argwhere(np.asarray(is_sent[0]))}
    assert sent == {(0, 0, 0), (1, 0, 1), (2, 1, 0)}  # (token, expert, place)
    np.testing.assert_array_equal(share[0].sum((1, 2)), [1, 2, 3, 0])


def test_capacity_counts_each_sequence_by_itself():
    # The same four choices as two sequences of two: no expert sees more than two of them.
    is_sent, _ = capacity_masks(WANTED, (2, 2, 2), job(2.0))
    assert int(is_sent.sum()) == 4


def test_a_dropped_token_gets_nothing():
    weights = {
        "gate": jnp.ones((2, 2, 16)),
        "up": jnp.ones((2, 2, 16)),
        "down": jnp.ones((2, 16, 2)),
    }
    routed = run_experts(jnp.ones((1, 4, 2)), WANTED, weights, job(1.0))
    one = routed.out[0, 0, 0]
    np.testing.assert_allclose(routed.out[0, :, 0], [one, 2 * one, 3 * one, 0], rtol=1e-6)
    assert int(routed.received_rows) == 3
