"""Every strategy computes what the slow twin computes, on every mesh."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from moeprof.kernels.runtime.poison import poison_mode
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat

from .builders import GQA, MLA, run_parallel, run_reference, tiny

pytestmark = pytest.mark.quick

LATENT = tiny()
GROUPED = tiny(attention=GQA, tied_head=True, dense_layers=0)
INTERLEAVED = tiny(layers=6, dense_layers=4, is_interleaved=True, attention=GQA, qk_norm="all")
DENSE = tiny(
    experts=0, top_k=0, moe_ffn=0, layers=2, dense_layers=2, attention=GQA, qk_norm="head",
    attention_bias=True, output_bias=True, has_sinks=True,
)  # fmt: skip
BIASED = tiny(attention=GQA, expert_bias=True, dense_layers=0, layers=1, shared_experts=0)
ONE_QUERY_MATRIX = tiny(attention=dataclasses.replace(MLA, q_lora_rank=0))
BFLOAT16 = tiny(compute_dtype="bfloat16")

CASES = [
    # strategy, model, expert, fsdp, remat
    ("sparse-ragged-dot", LATENT, 4, 2, "full"),
    ("sparse-ragged-dot", GROUPED, 2, 4, "none"),
    ("sparse-ragged-dot", LATENT, 1, 8, "none"),
    ("sparse-gmm", LATENT, 8, 1, "full"),
    ("sparse-gmm", LATENT, 1, 8, "full"),
    ("sparse-gmm", ONE_QUERY_MATRIX, 4, 2, "full"),
    ("sparse-ragged-dot", INTERLEAVED, 2, 4, "full"),
    ("sparse-gmm", DENSE, 1, 8, "full"),
    ("sparse-gmm", BIASED, 4, 2, "full"),
    ("dense-cf8", BIASED, 2, 4, "full"),
    ("sparse-gmm-deepep", LATENT, 8, 1, "full"),
    ("sparse-gmm-deepep", LATENT, 2, 4, "save:out_proj,mlpwo"),
    # Capacity 8 times an even share holds every token of an 8-token sequence: nothing is dropped.
    ("dense-cf8", LATENT, 4, 2, "full"),
    ("dense-cf8", GROUPED, 1, 8, "none"),
]


# Largest ||ours - reference|| / ||reference|| of one gradient. Float32 sums run in another order:
# some units in the last place (6e-8) over sums of some 100 terms. Bfloat16 keeps 8 bits, so each
# operation errs by up to 2^-9 = 0.2 %; through two layers and back the largest error seen is 2.2 %.
RELATIVE_ERROR = {"float32": 1e-5, "bfloat16": 0.05}
# Of the norm of all gradients: a smaller one is what is left of larger numbers that cancelled.
SMALLEST_NORM = 1e-3


@pytest.mark.parametrize(("strategy", "model", "expert", "fsdp", "remat"), CASES)
def test_gives_the_reference_loss_and_gradients(strategy, model, expert, fsdp, remat):
    check_against_reference(
        model, ParallelPlan(fsdp=fsdp, expert=expert, remat=Remat(remat)), strategy
    )


@pytest.mark.parametrize("strategy", ["sparse-gmm", "sparse-gmm-deepep"])
def test_poisoned_buffer_rows_reach_no_result(strategy):
    plan = ParallelPlan(fsdp=2, expert=4, remat=Remat("none"))
    with poison_mode():
        check_against_reference(GROUPED, plan, strategy)


@pytest.mark.parametrize("strategy", ["sparse-gmm", "sparse-gmm-deepep"])
def test_gives_the_reference_in_bfloat16(strategy):
    check_against_reference(BFLOAT16, ParallelPlan(fsdp=2, expert=4), strategy)


@pytest.mark.parametrize("model", [LATENT, GROUPED, BFLOAT16])
def test_half_of_any_gradient_would_be_seen(model):
    _, gradients, _ = run_reference(model)
    whole = by_name(gradients)
    for name, gradient in whole.items():
        errors = relative_errors(whole | {name: gradient / 2}, whole)
        seen = {other for other, e in errors.items() if e > RELATIVE_ERROR[model.compute_dtype]}
        assert seen == ({name} if gradient.any() else set())  # zero: an expert without a token


def check_against_reference(model, plan, strategy):
    loss, gradients, tokens = run_reference(model)
    found = run_parallel(model, plan, strategy)
    bound = RELATIVE_ERROR[model.compute_dtype]
    np.testing.assert_allclose(found.loss, loss, rtol=bound)
    np.testing.assert_array_equal(found.tokens_per_expert, tokens)
    errors = relative_errors(by_name(found.gradients), by_name(gradients))
    assert {name: error for name, error in errors.items() if not error <= bound} == {}


def by_name(gradients):
    """The gradient of each weight by its name, and of each expert by itself."""
    named = {}
    for path, leaf in jax.tree.leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        if "['experts']" in name:
            named |= {f"{name}[:, {e}]": leaf[:, e] for e in range(leaf.shape[1])}
        else:
            named[name] = leaf
    return named


def relative_errors(found, expected):
    """Error of each gradient, relative to its norm or to the `SMALLEST_NORM`."""
    floor = SMALLEST_NORM * sum(norm(gradient) ** 2 for gradient in expected.values()) ** 0.5
    return {
        name: norm(found[name] - gradient) / max(norm(gradient), floor)
        for name, gradient in expected.items()
    }


def norm(gradient):
    return np.linalg.norm(np.asarray(gradient, np.float64))
