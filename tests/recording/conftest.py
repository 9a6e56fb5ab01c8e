from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .running import SCRIPTS, Captured, command_line, environment


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., Captured]:
    """``capture("plain_loop.py", "7", options=("--steps", "2"))`` into a folder of its own.

    Three steps where `options` give no number of them; ``steps=()`` leaves it to the command.
    """

    def run(
        *target: str,
        options: tuple[str, ...] = (),
        stdin: str = "",
        env: dict[str, str] | None = None,
        name: str = "run",
        steps: tuple[str, ...] = ("--steps", "3"),
    ) -> Captured:
        run_dir = tmp_path / name
        done = subprocess.run(
            command_line("--no-report", "--out", run_dir, *steps, *options, *target),
            input=stdin,
            capture_output=True,
            text=True,
            cwd=SCRIPTS,
            env=environment(**(env or {})),
            timeout=120,
        )
        script = target[1] if target[0] == "-m" else target[0]
        return Captured(done.returncode, done.stdout, done.stderr, run_dir, script)

    return run
