"""Runs an example as a user does, in a process of its own on virtual CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import moeprof

ROOT = Path(moeprof.__file__).parent.parent
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CAPTURE = (
    "-c",
    "from moeprof.cli.main import main; main()",
    "capture",
    "--no-report",
    "--steps",
    "3",
)


def run_python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The number of devices is left to the script."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": path},
        timeout=300,
    )
