"""Question: what do the commands of the tutorial print, on this machine, today?

Runs the commands of docs/tutorial.md one after another in the folder of the repository, and puts
what they print into the page; ends with what the first one that fails says.

    python docs/write_tutorial.py
"""

from __future__ import annotations

import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
RUNS = ROOT / "runs" / "tutorial"
_EXAMPLE = re.compile(
    r"(\$ (?P<command>[^`]+?)\n```\n"
    r"<!-- written by docs/write_tutorial.py(?:, from \"(?P<first>[^\"]+)\")?"
    r"(?:, before \"(?P<end>[^\"]+)\")? -->\n).*?(<!-- end -->)",
    re.DOTALL,
)
_MACHINE = re.compile(r"(<!-- machine -->\n).*?(<!-- end -->)", re.DOTALL)
_PROGRAMS = {"python": [sys.executable], "moeprof": [sys.executable, "-m", "moeprof"]}


def written(page: str) -> str:
    """The page with what its commands print, from the line with one text to that with another."""

    def with_output(found: re.Match[str]) -> str:
        lines = _output(found["command"].replace("\\\n", " ")).splitlines()
        first, end = (_place(lines, found[name]) for name in ("first", "end"))
        shown = "\n".join(line.rstrip() for line in lines[first or 0 : end]).strip("\n")
        return f"{found[1]}```\n{shown}\n```\n{found[5]}"

    told = _MACHINE.sub(lambda found: f"{found[1]}{_machine()}\n{found[2]}", page)
    return _EXAMPLE.sub(with_output, told)


def _place(lines: list[str], text: str | None) -> int | None:
    """Number of the first line that begins with a text."""
    if text is None:
        return None
    found = [number for number, line in enumerate(lines) if line.startswith(text)]
    if not found:
        raise SystemExit(f"no line begins with {text!r} in:\n" + "\n".join(lines))
    return found[0]


def _output(command: str) -> str:
    program, *arguments = shlex.split(command)
    print(command, file=sys.stderr, flush=True)
    done = subprocess.run(
        [*_PROGRAMS[program], *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout.replace(f"{ROOT}/", "")


def _machine() -> str:
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    cores = len(os.sched_getaffinity(0))
    busy = os.getloadavg()[0]
    return (
        f"Measured on {datetime.date.today():%d %B %Y} on {cores} cores of {names[0]} "
        f"(load {busy:.0f} when it began, so other work took part of them), jax {jax.__version__}."
    )


if __name__ == "__main__":
    shutil.rmtree(RUNS, ignore_errors=True)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
