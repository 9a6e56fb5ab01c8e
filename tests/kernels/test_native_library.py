"""What is said where the native library or OpenBLAS cannot be loaded."""

from __future__ import annotations

import pytest

from moeprof.errors import NativeError
from moeprof.kernels.backends import cpu_library

scipy_openblas32 = pytest.importorskip("scipy_openblas32")

pytestmark = pytest.mark.cpu("the CPU library")


def test_an_openblas_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path):
    (tmp_path / "libscipy_openblas.so").write_text("no library")
    monkeypatch.setattr(scipy_openblas32, "get_lib_dir", lambda: str(tmp_path))
    with pytest.raises(NativeError, match=rf"OpenBLAS {tmp_path}/libscipy_openblas.so does not"):
        cpu_library._preload_openblas()
