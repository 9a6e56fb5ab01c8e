"""docs/memory.md names every option of `moeprof memory`, and shows what it prints."""

import runpy
from pathlib import Path

import click
import pytest

from moeprof.cli.memory import command

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "memory.md").read_text(encoding="utf-8")
OPTIONS = [p.opts[0] for p in command.params if isinstance(p, click.Option)]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_option_is_documented(option):
    assert option in PAGE


def test_the_strategies_are_documented():
    for name in ("dense-cf", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot"):
        assert f"`{name}" in PAGE


def test_the_example_is_what_the_command_prints():
    written = runpy.run_path(str(DOCS / "write_memory.py"))["written"]
    assert written(PAGE) == PAGE, "run: python docs/write_memory.py"
