"""Published traces with known answers, in ``../shared/data`` beside the checkout.

They are no part of the project: where the folder is not there, these tests do not exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

DATA = Path(__file__).parents[3] / "shared" / "data"
collect_ignore_glob = [] if DATA.is_dir() else ["test_*.py"]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of published data."""
    return DATA


@pytest.fixture(scope="session")
def opened() -> Callable[[str], Trace]:
    """`opened(name)`: the trace of that file name, read once."""
    return functools.cache(lambda name: open_run(DATA / "traces" / name))
