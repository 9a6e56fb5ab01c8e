from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.model.attention import BLOCK, blockwise_attention, causal_attention, whole_attention

pytestmark = pytest.mark.quick

# sequence, heads, key heads, query features, value features, block
CASES = {
    "whole blocks": (16, 2, 2, 8, 8, 4),
    "one block": (8, 2, 2, 8, 8, 8),
    "rest of a block": (13, 2, 2, 8, 8, 4),
    "block longer than the sequence": (5, 2, 2, 8, 8, 8),
    "shared keys (GQA)": (12, 6, 2, 8, 8, 4),
    "values narrower than keys (MLA)": (10, 3, 3, 12, 8, 4),
}


def _inputs(case: str, dtype=jnp.float32):
    sequence, heads, groups, dim, value_dim, block = CASES[case]
    kinds = ((heads, dim), (groups, dim), (groups, value_dim))
    shapes = [(2, sequence, *kind) for kind in kinds]
    arrays = [jax.random.normal(jax.random.key(i), s).astype(dtype) for i, s in enumerate(shapes)]
    return arrays, jax.random.normal(jax.random.key(9), (2, sequence, heads, value_dim)), block


@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_whole_scores(case):
    arrays, _, block = _inputs(case)
    found = jax.jit(lambda *a: blockwise_attention(*a, None, block))(*arrays)
    np.testing.assert_allclose(found, jax.jit(whole_attention)(*arrays), atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_blocks_equal_those_of_whole_scores(case):
    arrays, weight, block = _inputs(case)

    def gradients(attend):
        loss = jax.grad(lambda *a: jnp.sum(attend(*a) * weight), argnums=(0, 1, 2))
        return jax.jit(loss)(*arrays)

    found = gradients(lambda *a: blockwise_attention(*a, None, block))
    for mine, twin in zip(found, gradients(whole_attention), strict=True):
        np.testing.assert_allclose(mine, twin, atol=1e-5)


def test_equal_scores_average_the_values_so_far_and_share_their_gradient():
    value = jnp.arange(4.0).reshape(1, 4, 1, 1)
    none = jnp.zeros((1, 4, 1, 2))
    np.testing.assert_allclose(
        blockwise_attention(none, none, value, None, 2).reshape(-1), [0, 0.5, 1, 1.5], rtol=1e-6
    )
    # Position p gives each of its p + 1 values 1 / (p + 1): value 0 gets 1 + 1/2 + 1/3 + 1/4.
    d_value = jax.grad(lambda v: blockwise_attention(none, none, v, None, 2).sum())(value)
    by_hand = [1 + 1 / 2 + 1 / 3 + 1 / 4, 1 / 2 + 1 / 3 + 1 / 4, 1 / 3 + 1 / 4, 1 / 4]
    np.testing.assert_allclose(d_value.reshape(-1), by_hand, rtol=1e-6)


def test_half_precision_keeps_its_dtype_and_sums_in_float32():
    arrays, weight, block = _inputs("rest of a block", jnp.bfloat16)
    found = blockwise_attention(*arrays, None, block)
    exact = whole_attention(*(a.astype(jnp.float32) for a in arrays))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=0.03)
    gradients = jax.grad(
        lambda *a: jnp.sum(blockwise_attention(*a, None, block).astype(jnp.float32) * weight),
        argnums=(0, 1, 2),
    )(*arrays)
    assert [g.dtype for g in gradients] == [jnp.bfloat16] * 3


def test_only_output_and_log_sum_are_kept_besides_the_inputs():
    arrays, _, block = _inputs("whole blocks")
    _, pull = jax.vjp(lambda *a: blockwise_attention(*a, None, block), *arrays)
    sizes = [leaf.size for leaf in jax.tree.leaves(pull) if hasattr(leaf, "size")]
    # 2 sequences of 16 positions and 2 heads: three inputs and the output of 8 features, one sum.
    assert sum(sizes) == 2 * 16 * 2 * (4 * 8 + 1)


def test_long_sequences_go_by_blocks_and_recompute_under_checkpoint():
    sequence = BLOCK + 8
    arrays = [jax.random.normal(jax.random.key(i), (1, sequence, 1, 4)) for i in range(3)]

    def loss(attend, *a):
        return jnp.sum(jax.checkpoint(attend)(*a) ** 2)

    assert "while" in str(jax.make_jaxpr(causal_attention)(*arrays))
    mine = jax.grad(lambda *a: loss(causal_attention, *a), argnums=(0, 1, 2))(*arrays)
    twin = jax.grad(lambda *a: loss(whole_attention, *a), argnums=(0, 1, 2))(*arrays)
    for found, expected in zip(mine, twin, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_sinks_join_the_softmax_of_their_head_and_have_its_gradient():
    arrays, weight, block = _inputs("shared keys (GQA)")
    arrays.append(jax.random.normal(jax.random.key(7), (arrays[0].shape[2],)))

    def gradients(attend):
        return jax.jit(jax.grad(lambda *a: jnp.sum(attend(*a) * weight), argnums=(0, 1, 2, 3)))

    mine = gradients(lambda *a: blockwise_attention(*a, block))(*arrays)
    for found, expected in zip(mine, gradients(whole_attention)(*arrays), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    # One position, score 0 against a sink of log 3: a quarter of the value is left.
    one, sink = jnp.zeros((1, 1, 1, 2)), jnp.log(jnp.array([3.0]))
    np.testing.assert_allclose(blockwise_attention(one, one, one + 8, sink, 1), 2.0, rtol=1e-6)
