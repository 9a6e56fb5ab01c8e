"""What an explanation of an out-of-memory failure can say: its verdicts, and its values."""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.units import format_bytes

ALREADY_FULL = "pool_already_full"
PROGRAM_TOO_LARGE = "program_too_large"
TOGETHER_TOO_LARGE = "together_too_large"
FRAGMENTED = "pool_fragmented"
NOT_GROWN = "pool_could_not_grow"
OUTSIDE_POOL = "outside_pool"
NOT_RESERVED = "pool_not_reserved"
NOT_LOADED = "program_not_loaded"
ON_CHIP = "on_chip_memory"
HOST_MEMORY = "host_memory"
NOT_TOLD = "cannot_be_told"
FITS_ALONE = "program_fits_alone"


@dataclass(frozen=True)
class Explanation:
    """The verdict, in a sentence; sizes in bytes, None where the text does not tell.

    ``is_inside`` is whether the memory was XLA's pool's. ``held_bytes`` is what others than this
    program held, ``excess_bytes`` how much is missing at least. ``is_arena``: the request is XLA's
    arena of temporaries, which is one allocation, so that arguments come on top.
    """

    verdict: str
    sentence: str
    is_inside: bool | None
    limit_bytes: int | None = None
    needed_bytes: int | None = None
    held_bytes: int | None = None
    excess_bytes: int | None = None
    is_arena: bool | None = None
    not_told: tuple[str, ...] = ()
    who: str = ""
    """The allocator or library whose request failed."""
    space: str = ""
    """The memory that ran out, as `Failure.space` names it."""
    state: str = ""
    """How the pool was: full, fragmented or could not grow; empty where no pool failed so."""


def missing(needed: int | None, limit: int | None) -> int | None:
    """How much more is needed than there is; None where one of them is not known."""
    return None if needed is None or limit is None else max(needed - limit, 0)


def sized(size: int | None) -> str:
    """One decimal from 1 GiB on: more digits than messages have are no knowledge."""
    if size is None:
        return "an unknown amount"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else format_bytes(size)
