"""Permuting, copying and summing rows, against the plain forms that autodiff differentiates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.model.layers import count_tokens
from moeprof.model.rows import (
    add_rows,
    compact_slots,
    invert_permutation,
    order_by_expert,
    padded_slots,
    sum_rows,
    take_rows,
)

pytestmark = pytest.mark.quick

EXPERTS = jnp.array([[3, 1], [0, 3], [1, 2], [0, 1]])  # 4 tokens, 2 experts each
TOKENS = jnp.arange(12.0).reshape(4, 3) + 1


def copies(x):
    slots = compact_slots(EXPERTS)
    return take_rows(x, slots.pair_of_slot // 2, slots.slot_of_pair.reshape(4, 2))


def test_compact_slots_are_sorted_by_expert_and_keep_their_order():
    slots = compact_slots(EXPERTS)
    # Pairs of expert 0: 2, 6; of 1: 1, 4, 7; of 2: 5; of 3: 0, 3.
    np.testing.assert_array_equal(slots.pair_of_slot, [2, 6, 1, 4, 7, 5, 0, 3])
    np.testing.assert_array_equal(slots.slot_of_pair, [6, 2, 0, 7, 3, 5, 1, 4])


def test_padded_slots_start_each_rank_at_its_block():
    # Ranks own experts 0, 1 and 2, 3: five pairs and three, in blocks of 6.
    slots = padded_slots(EXPERTS, jnp.array([5, 3]), block=6)
    np.testing.assert_array_equal(slots.pair_of_slot, [2, 6, 1, 4, 7, -1, 5, 0, 3, -1, -1, -1])
    np.testing.assert_array_equal(slots.slot_of_pair, [7, 2, 0, 8, 3, 6, 1, 4])


def test_slots_of_no_expert_come_last():
    order = order_by_expert(jnp.array([1, 2, 0, 2, 1]), num_experts=2)
    np.testing.assert_array_equal(order.slot_of_row, [2, 0, 4, -1, -1])
    np.testing.assert_array_equal(order.row_of_slot, [1, -1, 0, -1, 2])
    np.testing.assert_array_equal(order.rows_per_expert, [1, 2])


def test_inverse_of_a_permutation():
    order = jnp.array([2, 0, 3, 1])
    np.testing.assert_array_equal(invert_permutation(order)[order], jnp.arange(4))


def test_fan_out_copies_each_token_to_its_slots():
    tokens = [1, 3, 0, 2, 3, 2, 0, 1]
    np.testing.assert_array_equal(copies(TOKENS), TOKENS[jnp.array(tokens)])


def test_fan_out_has_the_gradient_of_the_plain_gather():
    wanted = jax.random.normal(jax.random.key(0), (8, 3))
    order = compact_slots(EXPERTS).pair_of_slot
    ours = jax.grad(lambda x: jnp.sum(copies(x) * wanted))(TOKENS)
    plain = jax.grad(lambda x: jnp.sum(x[order // 2] * wanted))(TOKENS)
    np.testing.assert_allclose(ours, plain, rtol=1e-6)


def test_fan_in_has_the_gradient_of_the_plain_form():
    slots = compact_slots(EXPERTS)
    weights = jax.random.uniform(jax.random.key(1), (4, 2))
    rows = jax.random.normal(jax.random.key(2), (8, 3))
    wanted = jax.random.normal(jax.random.key(3), (4, 3))

    def ours(rows, weights):
        pairs = take_rows(rows, slots.slot_of_pair, slots.pair_of_slot[:, None])
        return jnp.sum(sum_rows(pairs, weights) * wanted)

    def plain(rows, weights):
        pairs = rows[slots.slot_of_pair].reshape(4, 2, 3)
        return jnp.sum(jnp.einsum("tkm,tk->tm", pairs, weights) * wanted)

    found = jax.value_and_grad(ours, argnums=(0, 1))(rows, weights)
    expected = jax.value_and_grad(plain, argnums=(0, 1))(rows, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_rows_that_nobody_takes_may_be_nan():
    x = TOKENS.at[1].set(jnp.nan)
    take, give = jnp.array([0, -1, 3]), jnp.array([[0], [-1], [-1], [2]])
    out, back = jax.vjp(lambda x: take_rows(x, take, give), x)
    np.testing.assert_array_equal(out, [TOKENS[0], jnp.zeros(3), TOKENS[3]])
    (d_x,) = back(jnp.array([[1.0] * 3, [jnp.nan] * 3, [2.0] * 3]))
    np.testing.assert_array_equal(d_x[:, 0], [1, 0, 0, 2])


def test_copies_of_a_row_sum_in_float32():
    # 256 ones in bfloat16 would stop at 256 after rounding 257 down; two halves of 257 do not.
    x = jnp.ones((1, 1), jnp.bfloat16)
    take, give = jnp.zeros(3, jnp.int32), jnp.arange(3)[None]
    _, back = jax.vjp(lambda x: take_rows(x, take, give), x)
    (d_x,) = back(jnp.array([[256.0], [1.0], [1.0]], jnp.bfloat16))
    assert float(d_x[0, 0]) == 258.0  # (256 + 1) + 1 would round to 256 twice


def test_sums_of_rows_and_their_gradient():
    # Rows 0 and 2 belong to source 1, row 1 to source 0, row 3 to none; source 2 has no row.
    take, give = jnp.array([1, 0, 1, -1]), jnp.array([[1, -1], [2, 0], [-1, -1]])
    rows = jnp.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [jnp.nan, jnp.nan]])
    out, back = jax.vjp(lambda x: add_rows(x, take, give), rows)
    np.testing.assert_array_equal(out, [[2, 20], [5, 50], [0, 0]])
    (d_rows,) = back(jnp.array([[3.0, 4.0], [5.0, 6.0], [jnp.nan, 1.0]]))
    np.testing.assert_array_equal(d_rows, [[5, 6], [3, 4], [5, 6], [0, 0]])


def test_sums_and_copies_are_each_others_transpose():
    take, give = jnp.array([1, 0, 1, -1]), jnp.array([[1, -1], [2, 0], [-1, -1]])
    x = jax.random.normal(jax.random.key(4), (3, 5))
    rows = jax.random.normal(jax.random.key(5), (4, 5))
    copied, added = take_rows(x, take, give), add_rows(rows, take, give)
    np.testing.assert_allclose(jnp.vdot(copied, rows), jnp.vdot(x, added), rtol=1e-6)


def test_neither_direction_needs_a_scatter():
    def both(x, weights):
        rows = copies(x)
        slots = compact_slots(EXPERTS)
        pairs = take_rows(rows, slots.slot_of_pair, slots.pair_of_slot[:, None])
        added = add_rows(rows, slots.pair_of_slot // 2, slots.slot_of_pair.reshape(4, 2))
        return jnp.sum(sum_rows(pairs, weights) + added) + jnp.sum(count_tokens(EXPERTS, 4))

    text = jax.jit(jax.grad(both, argnums=(0, 1))).lower(TOKENS, jnp.ones((4, 2))).as_text()
    assert "gather" in text
    assert "scatter" not in text
