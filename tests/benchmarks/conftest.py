"""Measuring programs import their neighbours, so their folder has to be on the path."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a measuring program by its file's name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module
