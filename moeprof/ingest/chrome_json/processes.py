"""What each process of a trace is: a device, the host that launched its work, or neither.

JAX and XProf name them ``/device:GPU:0`` and ``/host:CPU``, behind the name of the host where
several are in one file. PyTorch's profiler numbers them; there the category of the events tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moeprof.ingest.chrome_json.gathered import DEVICES, NONE, Gathered
from moeprof.ingest.planes.device_planes import gpu_ordinal, tpu_ordinal
from moeprof.ingest.xspace.space import Int64s

Role = Literal["device", "host", ""]

_HOST = "/host:CPU"
_BARE = re.compile(r"/(device|host):")
_RANK = re.compile(r"(?<![A-Za-z])rank[\s:=_#-]*(\d{1,6})(?!\d)", re.IGNORECASE)
_BRACKET = re.compile(r"\s*(\[[^\]]*\])")
_COUNTED = re.compile(r"(.*?)(-?\d{1,18})", re.DOTALL)
_BESIDE = ("/host:", "/device:CUSTOM")
_SPANS = ("Spans", "Traces")  # what PyTorch's profiler says of itself
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Process:
    """A process as the trace numbers and names it.

    ``place`` is its place in the order of naming. ``name`` lacks what stands before ``/device:`` or
    ``/host:``, which is ``prefix``. ``head`` is what its number begins with where that is a text
    (``[rank1]``), ``number`` the whole number behind it, None for none. ``device`` tells the
    devices of one process apart; ``rank`` is -1 where neither the name, the number nor the events
    give one. ``is_known`` says whether the format or the profiler explains what it is.
    """

    id: str
    place: int
    name: str
    prefix: str
    head: str
    number: int | None
    rank: int
    role: Role
    device: str
    is_known: bool


def processes_of(gathered: Gathered) -> list[Process]:
    """All processes that have a name or events, in order of their naming."""
    texts, code = gathered.labels.texts, gathered.labels.code
    process, category = gathered.column("process"), gathered.column("category")
    used, at = np.unique(process, return_inverse=True)
    is_work = np.isin(category, [code(name) for name in _ON_DEVICE])
    # JAX gives its events no category: a call without one is of a process that is known by its name
    is_call = (gathered.column("correlation") != NONE) & (category != 0)
    is_call |= category == code("user_annotation")
    is_op = gathered.column("op") != 0
    works, calls, has_ops = (
        np.bincount(at, flags, len(used)) > 0 for flags in (is_work, is_call, is_op)
    )
    ordinal, ranks = gathered.column("device"), _ranks(gathered.column("rank"), at, len(used))
    is_nameless = not any(_named_role(bare(name)[1])[0] for name in gathered.names.values())
    found: list[Process] = []
    numbers = {texts[label]: place for place, label in enumerate(used.tolist())}
    for number in dict.fromkeys([*gathered.names, *numbers]):
        full, place = gathered.names.get(number, ""), numbers.get(number, -1)
        prefix, name = bare(full)
        role, device = _named_role(name)
        told = _rank_in(full, number)
        if place >= 0:
            told = int(ranks[place]) if told < 0 else told
            if not role and works[place]:
                role = "device"
                mine = is_work & (at == place)
                device = ",".join(map(str, np.unique(ordinal[mine]).tolist()))
            elif not role and (
                (calls[place] and not name.startswith(("/device:", "/host:")))
                or (has_ops[place] and not name and is_nameless)
            ):
                role = "host"
        head, tail = _numbered(number)
        is_known = bool(role or number in gathered.tags) or _is_usual(name, number) or place < 0
        found.append(
            Process(number, len(found), name, prefix, head, tail, told, role, device, is_known)
        )
    return found


def _is_usual(name: str, number: str) -> bool:
    """Whether profilers add a process of that name or number beside devices and host."""
    return name.startswith(_BESIDE) or number.endswith(_SPANS) or not (name or number)


def bare(name: str) -> tuple[str, str]:
    """What stands before ``/device:`` or ``/host:``, and the rest; a name without has no prefix."""
    found = _BARE.search(name)
    if found is None:
        return "", name
    return name[: found.start()].strip(" :|/-"), name[found.start() :]


def _named_role(name: str) -> tuple[Role, str]:
    if gpu_ordinal(name) is not None or tpu_ordinal(name) is not None:
        return "device", name
    return ("host", "") if name.startswith(_HOST) else ("", "")


def _rank_in(name: str, number: str) -> int:
    told = {int(rank) for text in (number, name) for rank in _RANK.findall(text)}
    return told.pop() if len(told) == 1 else -1


def _ranks(told: Int64s, at: Int64s, count: int) -> Int64s:
    """The rank that all events of a process name, else -1."""
    low, high = np.full(count, 2**62, np.int64), np.full(count, -(2**62), np.int64)
    np.minimum.at(low, at, told)
    np.maximum.at(high, at, told)
    return np.where((low == high) & (low >= 0) & (low < DEVICES), low, -1)


def _numbered(number: str) -> tuple[str, int | None]:
    """What a process's number begins with where it is no plain one, and its whole number."""
    bracket = _BRACKET.match(number)
    head = bracket.group(1) if bracket else ""
    rest = number[bracket.end() :] if bracket else number
    found = _COUNTED.fullmatch(rest.strip())
    if found is None:
        return head, None
    return head or found.group(1).strip(" :_/-"), int(found.group(2))
