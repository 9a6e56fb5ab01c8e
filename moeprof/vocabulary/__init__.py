"""What a kernel or a custom call does, by its name: one table, `names.csv`, for all who ask.

A row is a family of names that a library gives: its pattern, what it does, where such names are
written down, and real names of it. The first row whose pattern is found in a name decides, so
that what is special stands before what is general. A new library is a new row.

Columns of the table:

library    who gives the names; ``any`` where no one library does
pattern    regular expression that is searched for in a name
matches    ``kernel`` for device work, ``target`` for the target of a custom call, or ``both``
kind       what it does, in the words of `moeprof.analyzers.classify.op_kinds`; empty where the name
           does not tell
direction  ``dispatch`` or ``combine`` of a token exchange, else empty
stream     kind of stream work of `EVENTS`: kernel, copy, memset or sync; empty for targets
vendor     whose devices run it: nvidia, amd, tpu or any
source     where such names are written down
example    real names, separated by `` ; ``, each of which the row must be the first to match
"""

from __future__ import annotations

import csv
import functools
import re
from importlib.resources import files
from typing import NamedTuple

COMMUNICATION = frozenset(
    {"all_to_all", "ragged_all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast"}
    | {"permute", "send_recv", "communication", "barrier"}
)
"""Kinds that move data between devices, or wait for others to do so."""

_DRIVERS = frozenset({"driver", "rocclr", "AMD's profiler"})
_SEPARATOR = " ; "
_DESCRIPTOR = re.compile(r"\.kd$| \[clone \.kd\]$")
"""AMD's profiler names a kernel by the symbol of its descriptor, demangled or not."""
_NUMBERS = re.compile(r"(?:[._]\d+)+$")
"""XLA numbers its instructions and their kernels; no name means more with its number."""


class Entry(NamedTuple):
    """One row of the table."""

    library: str
    pattern: str
    matches: str
    kind: str
    direction: str
    stream: str
    vendor: str
    source: str
    example: str

    @property
    def examples(self) -> tuple[str, ...]:
        """Real names that the row must be the first to match."""
        return tuple(self.example.split(_SEPARATOR))


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All rows, in the order in which they are tried."""
    text = (files("moeprof.vocabulary") / "names.csv").read_text("utf-8")
    return tuple(Entry(**row) for row in csv.DictReader(text.splitlines()))


def source_name(kernel_name: str) -> str:
    """A kernel's name as its source has it, whichever profiler recorded it."""
    return _DESCRIPTOR.sub("", kernel_name)


@functools.lru_cache(maxsize=1 << 16)
def kernel(name: str) -> Entry | None:
    """The row of a kernel, a copy or any other work of a device; None where there is none."""
    return _first("kernel", _NUMBERS.sub("", source_name(name)))


@functools.lru_cache(maxsize=1 << 12)
def target(name: str) -> Entry | None:
    """The row of a custom call's target; None where there is none."""
    return _first("target", name)


@functools.cache
def token_exchanges() -> frozenset[str]:
    """Libraries whose exchanges a program calls as custom calls, not as collectives."""
    return frozenset(entry.library for entry in entries() if entry.direction)


def kind_of_kernel(name: str) -> str:
    """Kind of operation of a kernel, copy or memset by its name; ``kernel`` for any other."""
    entry = kernel(name)
    return (entry.kind if entry else "") or "kernel"


def kind_of_target(name: str) -> str:
    """Kind of operation of a custom call by its target; empty where no row knows it."""
    entry = target(name)
    return entry.kind if entry else ""


def is_driver_copy(name: str) -> bool:
    """Whether it is the driver's own copy or memory set, be it recorded as a kernel."""
    entry = kernel(name)
    return entry is not None and entry.library in _DRIVERS and entry.kind in ("copy", "memset")


def direction_of(name: str) -> str:
    """``dispatch`` or ``combine`` for a kernel of a token exchange that says so, else empty."""
    entry = kernel(name)
    return entry.direction if entry else ""


def stream_kind_of(name: str) -> str:
    """Kind of stream work that a name stands for: kernel, copy, memset or sync."""
    entry = kernel(name)
    return entry.stream if entry else "kernel"


@functools.cache
def _compiled(matches: str) -> tuple[tuple[re.Pattern[str], Entry], ...]:
    wanted = (matches, "both")
    return tuple((re.compile(row.pattern), row) for row in entries() if row.matches in wanted)


@functools.lru_cache(maxsize=1 << 16)  # many names differ in their number alone
def _first(matches: str, name: str) -> Entry | None:
    return next((row for pattern, row in _compiled(matches) if pattern.search(name)), None)
