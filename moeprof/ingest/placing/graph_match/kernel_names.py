"""Question: what does the name of a kernel say about its instruction?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.ingest.placing.graph_match.kinds import KERNELS, kernel_kind
from moeprof.ingest.placing.graph_match.schedule import Schedule
from moeprof.vocabulary import source_name

Ints = npt.NDArray[np.int64]

_PART = re.compile(r"_{1,2}\d+$")
"""Ends the names of several kernels of one instruction: sort_1, sort_1__1, sort_1__2."""


@dataclass(frozen=True)
class KernelNames:
    """One entry per distinct (name, kind). ``kinds`` index `KERNELS`.

    ``slots`` is the instruction that the name says, -1 where it says none; ``bodies`` its body,
    -1 likewise. ``has_own`` has one entry per slot: whether a kernel of its own name was seen. A
    slot without one may run the kernel of another slot with the same body. ``is_sole`` where no
    slot but the named one can run the kernel.
    """

    kinds: Ints
    slots: Ints
    bodies: Ints
    is_sole: npt.NDArray[np.bool_]
    has_own: npt.NDArray[np.bool_]


def read_names(names: Sequence[str], kinds: Sequence[str], schedule: Schedule) -> KernelNames:
    """`KernelNames` of distinct names of device work with their ``kind`` in `EVENTS`."""
    rows = [_read(name, kind, schedule) for name, kind in zip(names, kinds, strict=True)]
    slots = np.array([slot for _, slot, _ in rows], np.int64)
    is_exact = np.array([exact for _, _, exact in rows], np.bool_)
    has_own = np.zeros(len(schedule.ops), np.bool_)
    has_own[slots[is_exact]] = True
    borrowers = np.bincount(schedule.bodies[~has_own], minlength=len(schedule.ops))
    bodies = np.full(len(rows), -1, np.int64)
    bodies[slots >= 0] = schedule.bodies[slots[slots >= 0]]
    return KernelNames(
        kinds=np.array([kind for kind, _, _ in rows], np.int64),
        slots=slots,
        bodies=bodies,
        is_sole=is_exact & (borrowers[bodies] == 0),
        has_own=has_own,
    )


def _read(name: str, kind: str, schedule: Schedule) -> tuple[int, int, bool]:
    """(kind, slot or -1, whether the name is the instruction's to the letter)."""
    if kind == "kernel":
        name = source_name(name)
        slot = schedule.slot_of_name.get(name, -1)
        if slot >= 0:
            return KERNELS.index("named"), slot, True
        base = _PART.sub("", name)
        slot = schedule.slot_of_name.get(base, -1) if base != name else -1
        if slot >= 0:
            return KERNELS.index("named"), slot, "__" in name[len(base) :]
    return KERNELS.index(kernel_kind(name, kind)), -1, False
