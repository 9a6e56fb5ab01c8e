"""docs/memory.md names every option of `moeprof memory`."""

from pathlib import Path

import click
import pytest

from moeprof.cli.memory import command

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
OPTIONS = [p.opts[0] for p in command.params if isinstance(p, click.Option)]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_option_is_documented(option):
    assert option in PAGE


def test_the_strategies_are_documented():
    for name in ("dense-cf", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot"):
        assert f"`{name}" in PAGE
