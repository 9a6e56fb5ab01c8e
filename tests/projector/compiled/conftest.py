"""JAX's CUDA plugin, kept apart from the packages so that no other test sees it."""

import os
import sys
from pathlib import Path

import pytest

FOLDER = "MOEPROF_CUDA_PLUGIN"


@pytest.fixture(scope="module")
def plugin():
    """Where `make test` put the plugin; its compiler needs no GPU."""
    folder = Path(os.environ.get(FOLDER, Path(sys.prefix) / "cuda-plugin"))
    if not (folder / "jax_plugins").is_dir():
        pytest.skip(f"no CUDA plugin of JAX in {folder}")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
