"""Files that look at recorded profiles are collected where these lie beside the checkout."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"

collect_ignore_glob = [] if SHARED.is_dir() else ["*_recorded.py"]


@pytest.fixture(scope="session")
def recorded() -> Path:
    """The folder of recorded profiles."""
    return SHARED
