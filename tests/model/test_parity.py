"""Every strategy computes what the slow twin computes, on every mesh."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moeprof.specs.plan import ParallelPlan

from .builders import run_parallel, run_reference, tiny

# Float32 sums in another order: errors of a few units in the last place, over sums of 100 terms.
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


def check_against_reference(model, plan, strategy):
    loss, gradients, tokens = run_reference(model)
    found = run_parallel(model, plan, strategy)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-5)
    np.testing.assert_array_equal(found.tokens_per_expert, tokens)
    jax.tree.map_with_path(
        lambda path, ours, theirs: np.testing.assert_allclose(
            ours, theirs, err_msg=jax.tree_util.keystr(path), **CLOSE
        ),
        found.gradients,
        gradients,
    )


@pytest.mark.parametrize("strategy", ["sparse-ragged-dot", "sparse-gmm", "dense-cf8"])
@pytest.mark.parametrize(("expert", "fsdp"), [(4, 2), (8, 1), (1, 8)])
def test_gives_the_reference_loss_and_gradients(strategy, expert, fsdp):
    check_against_reference(tiny(), ParallelPlan(fsdp=fsdp, expert=expert), strategy)
