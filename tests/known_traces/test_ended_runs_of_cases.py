"""Published run folders without a profile: what they know is said, with exit code 3."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from moeprof.cli.analyze import command

MEMORY = (
    "out of memory: 9.0 GiB asked for, 53.5 GiB of a pool of 60.0 GiB in use, 6.5 GiB free, "
    "2.5 GiB too much"
)


@pytest.mark.parametrize(
    ("case", "known"),
    [
        (
            "killed",
            [
                "process 0 (node1): the script died (exit code 137) before anything was recorded",
                "process 1 (node2): the script raised JaxRuntimeError after 0 steps (train)",
                "command: python train.py",
                "the command ran 101 s",
            ],
        ),
        ("out_of_memory", [MEMORY, "the script ended with exit code 1"]),
        ("message_alone", [MEMORY]),
    ],
)
def test_what_is_known_is_said(data: Path, case: str, known: list[str]):
    run = data / "cases" / "dead_run" / case
    done = CliRunner().invoke(command, [str(run)], catch_exceptions=False)
    told = " ".join(done.output.split())
    assert done.exit_code == 3
    assert [text for text in known if text not in told] == []
    asked = f"moeprof memory explain-oom {run if MEMORY in known else 'LOG'}"
    assert f"Next {asked}" in told
