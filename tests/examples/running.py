"""Runs an example as a user does, in a process of its own on virtual CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from builders import quick

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


def run_python(*arguments: str | Path, is_quick: bool = False) -> subprocess.CompletedProcess[str]:
    """The number of devices is left to the script.

    Quickly compiled: `builders.quick`, for a run of which nothing but its words is read.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": quick.flags() if is_quick else "", "PYTHONPATH": path},
        timeout=300,
    )
