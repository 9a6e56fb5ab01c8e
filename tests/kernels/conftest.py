"""Each test starts without expert parallelism set up, and leaves none behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from moeprof.kernels import reset_runtime
from moeprof.kernels.exchange import ops

from .devices import on_gpu

# GPU handlers then wait for their kernels and return what was wrong at once, as on the CPU.
os.environ.setdefault("MOEPROF_STRICT", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """JAX_PLATFORMS=cuda,cpu runs the same tests on GPUs, but for those marked `cpu`."""
    for mark in item.iter_markers("cpu"):
        if on_gpu():
            pytest.skip(f"on the CPU alone: {mark.args[0]}")
    if item.get_closest_marker("gpu") and not on_gpu():
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def _fresh_runtime() -> Iterator[None]:
    yield
    reset_runtime()


@pytest.fixture(params=["native", "twin"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run dispatch and combine on the native library, then on the slow twin."""
    implementation = str(request.param)
    monkeypatch.setattr(ops, "_runs_native", lambda _: implementation == "native")
    return implementation
