"""Real captures, each made once: programs that know nothing of moeprof, on 8 virtual devices."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

PROGRAMS = Path(__file__).parent / "programs"
STEPS = 3


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trace]:
    """`captured(name)`: the trace of `STEPS` steps of a program, after two that are not traced."""
    known: dict[str, Trace] = {}

    def trace_of(name: str) -> Trace:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            _capture(_load(name), folder)
            known[name] = open_run(folder)
        return known[name]

    return trace_of


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"program_{name}", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _capture(program: ModuleType, folder: Path) -> None:
    import jax

    state = jax.block_until_ready(program.train(program.setup(), 2))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder), profiler_options=options)
    try:
        jax.block_until_ready(program.train(state, STEPS))
    finally:
        jax.profiler.stop_trace()
