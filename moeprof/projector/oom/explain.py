"""Question: why was there no room?

Inside XLA's pool or beside it; the program alone, or what else the pool held; and what the text
does not tell. A sum is only compared with a limit where both are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moeprof.projector.oom.capacity import Capacity
from moeprof.projector.oom.failures import TORCH
from moeprof.projector.oom.message import COMPILE, HOST, OUTSIDE, PLAN, RESERVE, Message
from moeprof.tables.compiled_memory import NOT_REPORTED
from moeprof.units import format_bytes

ALREADY_FULL = "pool_already_full"
PROGRAM_TOO_LARGE = "program_too_large"
TOGETHER_TOO_LARGE = "together_too_large"
FRAGMENTED = "pool_fragmented"
OUTSIDE_POOL = "outside_pool"
NOT_RESERVED = "pool_not_reserved"
ON_CHIP = "on_chip_memory"
HOST_MEMORY = "host_memory"
NOT_TOLD = "cannot_be_told"
FITS_ALONE = "program_fits_alone"

_SMALL = 10  # a request of less than a tenth of what is held did not fill the pool
_ROUNDING = 0.01
_NEARLY_FULL = 0.05
"""Of the pool: where less than this is free, that it is free in pieces is not the point."""
_CHIP_SPACES = frozenset({"vmem", "smem", "sflag", "cmem"})
_HOW_TO_KNOW = (
    "what else the pool held: the log has no allocator statistics (TF_CPP_MIN_LOG_LEVEL=0 keeps "
    "them; `moeprof capture` samples them)"
)
_HOW_TO_KNOW_ARENA = (
    "whether the request is the arena of a program's temporaries: there are no BufferAssignment "
    "stats; where it is, weights and optimizer state come on top"
)
_HOW_TO_KNOW_LIMIT = "the size of the pool: give --hardware, and --mem-fraction where it was set"


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


def explain(message: Message, capacity: Capacity | None = None) -> Explanation:
    """Why the allocation failed, as far as the message and the stated capacity tell."""
    return replace(_explained(message, capacity), who=message.failure.who)


def _explained(message: Message, capacity: Capacity | None) -> Explanation:
    failure = message.failure
    if failure.kind == COMPILE:
        return _of_compiler(message)
    if failure.kind == PLAN:
        return _of_plan(message, capacity)
    if failure.kind == OUTSIDE:
        return _outside(message, capacity)
    if failure.kind == RESERVE:
        size = _text(failure.request_bytes)
        return Explanation(
            NOT_RESERVED,
            f"the device had no room for XLA's pool itself ({size} asked): another process holds "
            "its memory, or the pool's fraction is too large",
            is_inside=None,
            needed_bytes=failure.request_bytes,
            not_told=("who holds the device's memory: nvidia-smi or rocm-smi tells",),
        )
    if failure.kind == HOST:
        return Explanation(
            HOST_MEMORY,
            "the host, not the device, ran out of memory (pinned buffers of offloaded tensors and "
            "checkpoints are host memory)",
            is_inside=False,
            needed_bytes=failure.request_bytes,
        )
    return _of_pool(message, capacity)


def is_arena(message: Message) -> bool | None:
    """Whether the request is the program's arena of temporaries; None where its size is unknown."""
    request, temp = message.failure.request_bytes, message.program.temp_bytes
    if request is None or temp is None:
        return None
    return temp > 0 and abs(request - temp) <= _ROUNDING * max(temp, request)


def program_bytes(message: Message) -> int | None:
    """What the program needs: its stated total, else the sum of its parts; None where unknown."""
    told = message.program
    if message.failure.needed_bytes is not None:
        return message.failure.needed_bytes
    parts = (told.argument_bytes, told.output_bytes, told.temp_bytes)
    if told.total_bytes:
        return told.total_bytes
    known = [part for part in parts if part is not None]
    return sum(known) - (told.alias_bytes or 0) if len(known) == len(parts) else None


def _of_compiler(message: Message) -> Explanation:
    failure, told = message.failure, message.program
    needed, limit = failure.needed_bytes, failure.capacity_bytes
    if failure.space in _CHIP_SPACES:
        return Explanation(
            ON_CHIP,
            f"a kernel needs {_text(needed)} of {_text(limit)} of on-chip memory "
            f"({failure.space}): its block sizes, not the model's memory",
            is_inside=None,
            limit_bytes=limit,
            needed_bytes=needed,
            excess_bytes=_excess(needed, limit),
        )
    held = f", {_text(told.argument_bytes)} of it arguments" if told.argument_bytes else ""
    return Explanation(
        PROGRAM_TOO_LARGE,
        f"the program alone needs {_text(needed)}{held}, the device has {_text(limit)}: "
        f"{_text(_excess(needed, limit))} too much",
        is_inside=True,
        limit_bytes=limit,
        needed_bytes=needed,
        held_bytes=0,
        excess_bytes=_excess(needed, limit),
        is_arena=None,
    )


def _of_plan(message: Message, capacity: Capacity | None) -> Explanation:
    """A compiled program against the pool, where its size is stated."""
    needed = program_bytes(message)
    if needed is None:
        return Explanation(NOT_TOLD, f"the memory of the program is {NOT_REPORTED}", is_inside=None)
    if capacity is None:
        sentence = f"the program needs {_text(needed)} of XLA's pool"
        how = (_HOW_TO_KNOW_LIMIT,)
        return Explanation(NOT_TOLD, sentence, is_inside=True, needed_bytes=needed, not_told=how)
    limit = capacity.pool_bytes
    if needed > limit:
        return _too_large(needed, limit, "the program alone needs", {})
    return Explanation(
        FITS_ALONE,
        f"the program needs {_text(needed)} of a pool of {_text(limit)}: it fits where nothing "
        "else is held",
        is_inside=True,
        limit_bytes=limit,
        needed_bytes=needed,
        excess_bytes=0,
    )


def _outside(message: Message, capacity: Capacity | None) -> Explanation:
    failure = message.failure
    size = f" {_text(failure.request_bytes)}" if failure.request_bytes else " memory"
    rest = ""
    if capacity is not None:
        room = capacity.device_bytes - capacity.pool_bytes
        rest = f": XLA's pool leaves {_text(room)} of {_text(capacity.device_bytes)}"
    return Explanation(
        OUTSIDE_POOL,
        f"{failure.who} found no room for{size} outside XLA's pool{rest}. A larger pool makes it "
        "worse",
        is_inside=False,
        needed_bytes=failure.request_bytes,
        held_bytes=message.pool.peak_bytes or message.pool.in_use_bytes,
        not_told=() if capacity else ("how much the pool leaves: give --hardware",),
    )


def _of_pool(message: Message, capacity: Capacity | None) -> Explanation:
    pool, request = message.pool, message.failure.request_bytes
    limit = pool.limit_bytes or message.failure.capacity_bytes
    limit = limit or (capacity.pool_bytes if capacity else None)
    in_use = pool.in_use_bytes
    if in_use is None and limit is not None and message.failure.free_bytes is not None:
        in_use = limit - message.failure.free_bytes
    if in_use is not None and limit is not None:
        return _with_state(message, limit, in_use)
    return _without_state(message, limit, request)


def _with_state(message: Message, limit: int, in_use: int) -> Explanation:
    """The pool's state at the failure is known."""
    request, needed = message.failure.request_bytes, program_bytes(message)
    free = max(limit - in_use, 0)
    known: dict[str, Any] = {
        "limit_bytes": limit,
        "needed_bytes": needed,
        "is_arena": is_arena(message),
    }
    excess = None if request is None else max(request - free, 0) or None
    if request is not None and request <= free and free > _NEARLY_FULL * limit:
        largest = message.pool.largest_free_bytes
        piece = f" (the largest piece is {_text(largest)})" if largest is not None else ""
        return Explanation(
            FRAGMENTED,
            f"{_text(free)} were free, but in no piece of {_text(request)}{piece}: the pool is "
            "fragmented",
            is_inside=True,
            excess_bytes=0,
            **known,
        )
    if needed is not None:
        held = max(in_use - (message.program.argument_bytes or 0), 0)
        return _of_two(held, needed, limit, excess, known)
    if request is not None and request > limit:
        return _too_large(request, limit, "the request alone is", known)
    is_eager = message.failure.who == TORCH  # each tensor is a request of its own
    if request is not None and request * _SMALL <= in_use and not is_eager:
        return Explanation(
            ALREADY_FULL,
            f"the pool was already full ({_text(in_use)} held by earlier arrays/other programs, of "
            f"{_text(limit)}); the request of {_text(request)} is not what filled it",
            is_inside=True,
            held_bytes=in_use,
            excess_bytes=excess,
            not_told=("how much of it is this program's arguments",),
            **known,
        )
    return Explanation(
        TOGETHER_TOO_LARGE,
        f"{_text(request)} were asked where {_text(in_use)} of {_text(limit)} were held: "
        f"{_text(excess)} too much",
        is_inside=True,
        excess_bytes=excess,
        not_told=("how much of what was held is this program's arguments",),
        **known,
    )


def _of_two(
    held: int, needed: int, limit: int, excess: int | None, known: dict[str, Any]
) -> Explanation:
    """What others held against what the program needs."""
    if needed > limit:
        return _too_large(needed, limit, "the program alone needs", known, held)
    excess = excess if excess is not None else max(held + needed - limit, 0)
    if needed * _SMALL <= held:
        return Explanation(
            ALREADY_FULL,
            f"the pool was already full ({_text(held)} held by earlier arrays/other programs, of "
            f"{_text(limit)}); this program needs {_text(needed)}, which is not what filled it",
            is_inside=True,
            held_bytes=held,
            excess_bytes=excess,
            **known,
        )
    return Explanation(
        TOGETHER_TOO_LARGE,
        f"this program needs {_text(needed)} and earlier arrays/other programs held "
        f"{_text(held)}, of {_text(limit)} together: {_text(excess)} too much",
        is_inside=True,
        held_bytes=held,
        excess_bytes=excess,
        **known,
    )


def _too_large(
    needed: int,
    limit: int,
    subject: str,
    known: dict[str, Any],
    held: int | None = None,
) -> Explanation:
    return Explanation(
        PROGRAM_TOO_LARGE,
        f"{subject} {_text(needed)}, the pool has {_text(limit)}: {_text(needed - limit)} too much",
        is_inside=True,
        held_bytes=held,
        excess_bytes=needed - limit,
        **{**known, "limit_bytes": limit, "needed_bytes": needed},
    )


def _without_state(message: Message, limit: int | None, request: int | None) -> Explanation:
    """What the pool held is not told."""
    needed, arena = program_bytes(message), is_arena(message)
    known: dict[str, Any] = {"is_arena": arena}
    free = message.failure.free_bytes
    if limit is not None and (needed or request or 0) > limit:
        subject = "the program alone needs" if needed else "the request alone is"
        return _too_large(needed or request or 0, limit, subject, known)
    not_told = [_HOW_TO_KNOW] if free is None else []
    if arena is None:
        not_told.append(_HOW_TO_KNOW_ARENA)
    if limit is None and free is None:
        not_told.append(_HOW_TO_KNOW_LIMIT)
    if needed is not None and limit is not None:
        return Explanation(
            ALREADY_FULL if needed * 2 <= limit else TOGETHER_TOO_LARGE,
            f"the program needs {_text(needed)} and fits the pool of {_text(limit)} alone, so "
            f"something else held more than {_text(limit - needed)} of it (or it is fragmented)",
            is_inside=True,
            limit_bytes=limit,
            needed_bytes=needed,
            is_arena=arena,
            not_told=tuple(not_told),
        )
    if free is not None:
        sentence = f"{_text(request)} were asked, {_text(free)} of the device's memory were free"
    elif request is not None and limit is not None:
        sentence = (
            f"{_text(request)} were asked in one allocation; beside it the pool of {_text(limit)} "
            f"has room for {_text(limit - request)}: weights, optimizer state and all else came to "
            "more"
        )
    else:
        sentence = f"{_text(request)} were asked, and XLA's pool had no room for them"
    excess = None if free is None or request is None else max(request - free, 0)
    return Explanation(
        NOT_TOLD,
        sentence,
        is_inside=True,
        limit_bytes=limit,
        needed_bytes=needed,
        excess_bytes=excess,
        is_arena=arena,
        not_told=tuple(not_told),
    )


def _excess(needed: int | None, limit: int | None) -> int | None:
    return None if needed is None or limit is None else max(needed - limit, 0)


def _text(size: int | None) -> str:
    """One decimal from 1 GiB on: more digits than messages have are no knowledge."""
    if size is None:
        return "an unknown amount"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else format_bytes(size)
