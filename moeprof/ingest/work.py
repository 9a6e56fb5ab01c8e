"""Question: what did one profile file record, before it is joined with the programs?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Work(NamedTuple):
    """A piece of device work; ``module`` and ``run_id`` are -1, ``op`` empty where unknown."""

    device: int
    line: str
    name: str
    module: int
    op: str
    run_id: int
    start_ps: int
    end_ps: int


class Wait(NamedTuple):
    """A device of a CPU run waiting for its peers, inside the work ``op``."""

    device: int
    name: str
    op: str
    module: int
    run_id: int
    start_ps: int
    end_ps: int


class Marker(NamedTuple):
    """A step annotation of the user's program."""

    name: str
    step: int
    start_ps: int
    end_ps: int


class Launch(NamedTuple):
    """The host call that started execution ``run_id`` of a module."""

    run_id: int
    start_ps: int


@dataclass
class Record:
    """What the planes of one file hold. Readers append to it; nobody else changes it."""

    work: list[Work] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    compiles_ps: list[int] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    damage: list[str] = field(default_factory=list)
    events: int = 0


_LATEST_PS = 2**62 * 1000  # 146 years: no capture, and no date, lies beyond


def is_sound(start_ps: int, end_ps: int) -> bool:
    """Whether a stamp can be true: a negative length or a start at or before 0 cannot."""
    return 0 < start_ps <= end_ps < _LATEST_PS
