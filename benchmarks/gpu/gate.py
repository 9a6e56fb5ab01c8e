"""Question: may a measurement on GPUs begin here, and may what it found replace a result file?

    python benchmarks/gpu/gate.py WHO GPUS [WHO GPUS …]    # a line per WHO that finds too few

Ends with status 2 where one finds too few, before anything is written. Needs no package.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REFUSED = 2


def gpus_listed(text: str) -> int:
    """GPUs in the answer of `nvidia-smi -L`; the indented lines are slices of the one above."""
    return sum(line.startswith("GPU ") for line in text.splitlines())


def gpus_named(found: int, visible: str | None) -> int:
    """How many of ``found`` GPUs CUDA_VISIBLE_DEVICES leaves; None leaves all.

    The driver takes names up to the first that is none: empty, negative, or an index too large.
    """
    if visible is None:
        return found
    names = []
    for name in (text.strip() for text in visible.split(",")):
        if not name or name.startswith("-") or (name.isdigit() and int(name) >= found):
            break
        names.append(name)
    return min(found, len(names))


def count_gpus() -> int:
    """NVIDIA GPUs that this process may use, by nvidia-smi, else by the driver; starts no backend.

    A driver that does not answer within a minute counts as none.
    """
    program = shutil.which("nvidia-smi")
    if program is not None:
        try:
            done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        if done.returncode == 0:
            return gpus_named(gpus_listed(done.stdout), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return _gpus_of_driver()


def _gpus_of_driver() -> int:
    """By libcuda, which reads CUDA_VISIBLE_DEVICES itself; 0 where it is absent or fails."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def lacking(who: str, needed: int, found: int) -> str:
    """ "" where there are enough GPUs, else what was expected and found."""
    if found >= needed:
        return ""
    noun = "GPU" if needed == 1 else "GPUs"
    return f"{who}: expected {needed} NVIDIA {noun}, found {found or 'none'}"


def wrong_file(out: Path, *, smoke: bool) -> str:
    """ "" where a result may go to ``out``, else why not.

    Tiny sizes, on any backend, go to no file with figures of GPUs.
    """
    if not out.parent.is_dir():
        return f"--out {out}: expected a folder {out.parent}, found none; make it first"
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        return f"--out {out}: expected a file that can be written; name another"
    if smoke and out.exists():
        try:
            document = json.loads(out.read_text())
            cards = document["machine"]["cards"]
        except (OSError, ValueError, LookupError, TypeError):
            return f"--out {out}: expected results, found another file; name another"
        if cards:
            return f"--out {out}: expected no figures of GPUs under --smoke; name another file"
    return ""


def begin(who: str, needed: int, out: Path | None = None, *, smoke: bool = False) -> None:
    """Ends this program with one line and status 2 where it may not begin.

    ``smoke`` needs no GPU; it is held to files without figures of GPUs.
    """
    wrong = "" if smoke else lacking(who, needed, count_gpus())
    if not wrong and out is not None:
        wrong = wrong_file(out, smoke=smoke)
    if wrong:
        print(wrong, file=sys.stderr)
        sys.exit(REFUSED)


def write_result(out: Path, document: dict[str, Any]) -> None:
    """Replaces ``out`` in one step: a reader finds what was there or what is new, whole."""
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, indent=1) + "\n")
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """Refuses for all who find too few."""
    found = count_gpus()
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    lines = [line for who, needed in pairs if (line := lacking(who, int(needed), found))]
    for line in lines:
        print(line, file=sys.stderr)
    return REFUSED if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
