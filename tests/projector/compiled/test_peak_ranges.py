"""The peak of a step is a range where kernels that a run chooses decide, against sums by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp

import moeprof
from moeprof.units import format_bytes

TOKENS = 512
BF16 = 2


def test_which_kernels_a_run_chooses_is_a_range_and_may_decide(plugin):
    """Triton converts weights of int8 as it multiplies; for cuBLAS they are converted before it."""
    width, workspace = 4096, 4 * 2**20  # what XLA lends cuBLAS on Hopper
    found = moeprof.plan(
        lambda x, weights: x @ weights.astype(jnp.bfloat16),
        jax.ShapeDtypeStruct((TOKENS, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((width, width), jnp.int8),
        devices=1,
    )
    more = BF16 * width * width + workspace
    assert found.temporaries_bytes == 0
    assert more <= found.library_temporaries_bytes <= more + 256  # one more alignment
    least = BF16 * TOKENS * width * 2 + width * width
    assert found.peak_range == (least, least + found.library_temporaries_bytes)
    text = f"{format_bytes(least)} to {format_bytes(least + more)}: "
    assert f"Memory {text}" in str(found)

    def on(pool_bytes: float):
        return replace(found, mem_fraction=pool_bytes / found.hardware.hbm_bytes)

    # 24 MiB, or 60 MiB, which are 2.5 times that
    verdicts = {0.95: "oom", 0.96: "borderline", 1.1: "borderline", 2.6: "borderline", 2.7: "fits"}
    assert [on(least * room).verdict for room in verdicts] == list(verdicts.values())
    assert replace(on(least * 2.7), is_range_known=False).verdict == "borderline"
    assert not on(least * 1.5).fits
    assert on(least * 1.5).left_bytes < 0
