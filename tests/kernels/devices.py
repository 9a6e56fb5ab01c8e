"""Question: on how many devices does a test run here?

On the CPU there are eight virtual ones. On GPUs there are as many as the machine has: tests that
can do with fewer ranks run on those, the others are skipped, with both numbers.
"""

from __future__ import annotations

import jax
import pytest


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def ranks(wanted: int) -> int:
    """The ranks of a test that works with any number from two on."""
    return min(wanted, max(2, len(jax.devices()))) if on_gpu() else wanted


def devices(count: int) -> list[jax.Device]:
    """The first devices; skips the test where a machine has fewer GPUs."""
    found = jax.devices()
    if on_gpu() and len(found) < count:
        pytest.skip(f"needs {count} GPUs, found {len(found)}")
    return found[:count]
