"""Starts `moeprof capture` as a user does and reads the run folder it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import moeprof

SCRIPTS = Path(__file__).parent.parent / "scripts"
ENTRY = "from moeprof.cli.main import main; main()"


@dataclass(frozen=True)
class Captured:
    exit_code: int
    stdout: str
    stderr: str
    run_dir: Path
    target: str

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

    @property
    def own_stderr(self) -> str:
        """What the script wrote to stderr, without the lines of moeprof."""
        lines = self.stderr.splitlines(keepends=True)
        ours = ("moeprof: ", f"{self.target} ended with exit code")
        return "".join(line for line in lines if not line.startswith(ours))


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", ENTRY, "capture", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """One device, and moeprof as it is imported here."""
    root = str(Path(moeprof.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": path, **changes}


def alone(*command: str) -> subprocess.CompletedProcess[str]:
    """A script as it runs without moeprof."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
        env=environment(),
        timeout=120,
    )
