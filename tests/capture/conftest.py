"""Runs `moeprof capture` as a user does: another process, a real script, a real run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import moeprof

SCRIPTS = Path(__file__).parent.parent / "scripts"
ENTRY = "from moeprof.cli.main import main; main()"


@dataclass(frozen=True)
class Captured:
    exit_code: int
    stdout: str
    stderr: str
    run_dir: Path

    @property
    def meta(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "meta.json").read_text())

    @property
    def process(self) -> dict[str, Any]:
        (process,) = self.meta["processes"]
        return process

    @property
    def window(self) -> dict[str, Any]:
        return self.process["window"]

    @property
    def profiles(self) -> list[Path]:
        return sorted((self.run_dir / "plugins" / "profile").glob("*/*.xplane.pb"))


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", ENTRY, "capture", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """One device and moeprof as it is imported here."""
    root = str(Path(moeprof.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": path, **changes}


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., Captured]:
    """``capture("plain_loop.py", "7", options=["--steps", "2"])`` in a folder of its own."""

    def run(
        *target: str,
        options: tuple[str, ...] = (),
        stdin: str = "",
        env: dict[str, str] | None = None,
        cwd: Path = SCRIPTS,
        name: str = "run",
    ) -> Captured:
        run_dir = tmp_path / name
        done = subprocess.run(
            command_line("--no-report", "--out", run_dir, *options, *target),
            input=stdin,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=environment(**(env or {})),
            timeout=120,
        )
        return Captured(done.returncode, done.stdout, done.stderr, run_dir)

    return run
