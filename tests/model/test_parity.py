"""Every strategy computes what the slow twin computes, on every mesh."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moeprof.kernels.poison import poison_mode
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat

from .builders import GQA, run_parallel, run_reference, tiny

LATENT = tiny()
GROUPED = tiny(attention=GQA, tied_head=True, dense_layers=0)
BFLOAT16 = tiny(compute_dtype="bfloat16")

CASES = [
    # strategy, model, expert, fsdp, remat
    ("sparse-ragged-dot", LATENT, 4, 2, "full"),
    ("sparse-ragged-dot", GROUPED, 2, 4, "none"),
    ("sparse-ragged-dot", LATENT, 1, 8, "none"),
    ("sparse-gmm", LATENT, 8, 1, "full"),
    ("sparse-gmm", LATENT, 1, 8, "full"),
    ("sparse-gmm-deepep", LATENT, 8, 1, "full"),
    ("sparse-gmm-deepep", LATENT, 2, 4, "save:out_proj,mlpwo"),
    # Capacity 8 times an even share holds every token of an 8-token sequence: nothing is dropped.
    ("dense-cf8", LATENT, 4, 2, "full"),
    ("dense-cf8", GROUPED, 1, 8, "none"),
]


@pytest.mark.parametrize(("strategy", "model", "expert", "fsdp", "remat"), CASES)
def test_gives_the_reference_loss_and_gradients(strategy, model, expert, fsdp, remat):
    plan = ParallelPlan(fsdp=fsdp, expert=expert, remat=Remat(remat))
    # Float32 sums in another order: some units in the last place, over sums of about 100 terms.
    check_against_reference(model, plan, strategy, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("strategy", ["sparse-gmm", "sparse-gmm-deepep"])
def test_poisoned_buffer_rows_reach_no_result(strategy):
    plan = ParallelPlan(fsdp=2, expert=4, remat=Remat("none"))
    with poison_mode():
        check_against_reference(GROUPED, plan, strategy, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("strategy", ["sparse-gmm", "sparse-gmm-deepep"])
def test_gives_the_reference_in_bfloat16(strategy):
    # 8 bits of mantissa, rounded at every step of two layers.
    plan = ParallelPlan(fsdp=2, expert=4)
    check_against_reference(BFLOAT16, plan, strategy, rtol=0.1, atol=0.02)


def check_against_reference(model, plan, strategy, *, rtol, atol):
    loss, gradients, tokens = run_reference(model)
    found = run_parallel(model, plan, strategy)
    np.testing.assert_allclose(found.loss, loss, rtol=rtol / 10)
    np.testing.assert_array_equal(found.tokens_per_expert, tokens)
    jax.tree.map_with_path(
        lambda path, ours, theirs: np.testing.assert_allclose(
            ours, theirs, rtol, atol, err_msg=jax.tree_util.keystr(path)
        ),
        found.gradients,
        gradients,
    )
