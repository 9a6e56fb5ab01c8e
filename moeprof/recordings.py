"""Question: which recording does the path of a run stand for, where its job was started again?

A job that is started again with the same ``--out`` must train, so its recording goes to a free
folder beside: ``RUN-2`` is the second recording of RUN. Who names RUN then means the newest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

RECORDED_AGAIN = ".recorded-again"
"""File in a run folder: the name of the folder that was asked for, and had files."""


def numbered(run_dir: Path, number: int) -> Path:
    """The folder of the recording with this number, from 2 on, that was sent to `run_dir`."""
    return run_dir.with_name(f"{run_dir.name}-{number}")


def newest_recording(run: Path, beside: Sequence[Path] = ()) -> Path:
    """The last recording with a profile that was sent to `run`, which may be `run` itself.

    It is `run` itself too where another recording of it is among the paths ``beside`` it: who names
    RUN and RUN-2 means both.
    """
    again = _recorded_again(run)
    named = {os.path.abspath(path) for path in beside}
    if not again or any(os.path.abspath(folder) in named for folder in again):
        return run
    return newest_recording(again[-1])


def described_newest(run: Path, newest: Path, first: str = "session {} is the first") -> str:
    """That the newest recording is read in the place of the first; empty where there is but one.

    ``first`` says how the first is to be had, with ``{}`` for the name of its session.
    """
    if newest == run:
        return ""
    told = [f"{run} was recorded again: read {newest}, the newest"]
    return "; ".join([*told, *filter(None, [first.format(os.path.basename(os.path.abspath(run)))])])


def _recorded_again(run: Path) -> list[Path]:
    """The further recordings of `run` that have a profile, oldest first."""
    first, found, number = Path(os.path.abspath(run)), [], 2
    while os.path.exists(folder := numbered(first, number)):
        if _is_again(folder, first.name) and _has_profile(folder):
            found.append(run.with_name(folder.name) if run.name == first.name else folder)
        number += 1
    return found


def _has_profile(folder: Path) -> bool:
    """Whether there is one that may be looked at."""
    try:
        return any((folder / "plugins").rglob("*.xplane.pb"))
    except OSError:
        return False


def _is_again(folder: Path, name: str) -> bool:
    try:
        return (folder / RECORDED_AGAIN).read_text().strip() == name
    except (OSError, ValueError):
        return False
