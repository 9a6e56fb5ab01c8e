"""Question: what do the commands of these pages answer today?

Puts their own output into docs/memory.md, out_of_memory.md, search.md and pytorch.md:

    python docs/write_memory.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGES = [
    Path(__file__).parent / name
    for name in ("memory.md", "out_of_memory.md", "search.md", "pytorch.md")
]
_EXAMPLE = re.compile(
    r"(\$ moeprof (?P<command>[^\n]+)\n```\n<!-- output[^\n]*-->\n```\n).*?(```\n<!-- end -->)",
    re.DOTALL,
)


def written(page: str) -> str:
    """The page with the output of each of its commands."""
    return _EXAMPLE.sub(lambda found: found[1] + _output(found["command"]) + found[3], page)


def _output(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "moeprof", *shlex.split(command)],
        capture_output=True,
        text=True,
        check=True,
        cwd=PAGES[0].parents[1],
        env={**os.environ, "COLUMNS": "80"},
    )
    return done.stdout


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
