"""Choices of the largest that choose no expert: nothing is recorded of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from . import models
from .test_routers import refusal


def confidence(logits, chosen, labels):
    return jnp.take_along_axis(logits, chosen[:, None], -1)


def scores_by_class(logits, chosen, labels):
    """F1, by comparing with each class in turn."""
    return [((chosen == one) & (labels == one)).sum() for one in range(logits.shape[-1])]


@pytest.mark.parametrize("metric", [confidence, scores_by_class])
def test_a_classifier_with_as_many_heads_of_attention_as_classes_has_no_router(metric):
    classes = 4
    weights = {
        "query": jnp.ones((models.WIDTH, classes, 6)),
        "out": jnp.ones((classes, 6, models.WIDTH)),
        "head": jnp.ones((models.WIDTH, classes)),
    }

    @jax.jit
    def step(weights, x, labels):
        def loss(weights):
            heads = jnp.tanh(jnp.einsum("td,dhk->thk", x, weights["query"]))
            logits = (x + jnp.einsum("thk,hkd->td", heads, weights["out"])) @ weights["head"]
            return (logits**2).mean(), metric(logits, jnp.argmax(logits, -1), labels)

        return jax.value_and_grad(loss, has_aux=True)(weights)

    labels = jnp.zeros(models.TOKENS, int)
    assert "steers no experts' weights" in refusal(step, weights, models.batch(), labels)


def test_heads_of_several_codebooks_are_no_experts():
    weights = {
        "heads": jnp.ones((models.WIDTH, 3, 11)),
        "tables": jnp.ones((3, 11, models.WIDTH)),
    }

    @jax.jit
    def sample(weights, x):
        logits = jnp.einsum("td,dnv->tnv", jnp.tanh(x), weights["heads"])
        chosen = jnp.argmax(logits, -1)
        sure = jnp.take_along_axis(logits, chosen[..., None], -1)
        return weights["tables"][jnp.arange(3)[None], chosen].sum(1), sure

    assert "steers no experts' weights" in refusal(sample, weights, models.batch())
