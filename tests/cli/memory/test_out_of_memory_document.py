"""docs/out_of_memory.md: its example is the command's own output, and no verdict is missing."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from moeprof.cli.memory.subcommands import explain_oom as command
from moeprof.projector import oom

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "out_of_memory.md").read_text(encoding="utf-8")


def test_the_example_is_what_the_command_prints():
    shown = re.search(r"docs/write_memory.py -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    log = str(DOCS / "examples" / "out_of_memory.log")
    assert CliRunner().invoke(command, [log], catch_exceptions=False).stdout == shown[1]


def test_every_verdict_of_a_failure_is_documented():
    names = ("ALREADY_FULL", "PROGRAM_TOO_LARGE", "TOGETHER_TOO_LARGE", "FRAGMENTED", "NOT_TOLD",
             "OUTSIDE_POOL", "NOT_RESERVED", "ON_CHIP", "HOST_MEMORY", "NOT_GROWN",
             "NOT_LOADED")  # fmt: skip
    for name in names:
        assert f"`{getattr(oom, name)}`" in PAGE
