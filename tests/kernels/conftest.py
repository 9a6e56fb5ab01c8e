"""Each test starts without expert parallelism set up, and leaves none behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moeprof.kernels import moe_ops, reset_runtime


@pytest.fixture(autouse=True)
def _fresh_runtime() -> Iterator[None]:
    yield
    reset_runtime()


@pytest.fixture(params=["native", "twin"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run dispatch and combine on the native library, then on the slow twin."""
    implementation = str(request.param)
    monkeypatch.setattr(moe_ops, "_runs_native", lambda _: implementation == "native")
    return implementation
