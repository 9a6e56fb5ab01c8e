"""Question: why was there no room?

Inside XLA's pool or beside it; the program alone, or what else the pool held; and what the text
does not tell. A sum is only compared with a limit where both are known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeprof.projector.oom import (
    ALREADY_FULL,
    CHIP_SPACES,
    COMPILE,
    COULD_NOT_GROW,
    FITS_ALONE,
    FRAGMENTED,
    FULL,
    HOST,
    IN_PIECES,
    LOAD,
    NOT_GROWN,
    NOT_TOLD,
    OUTSIDE,
    PLAN,
    PROGRAM_TOO_LARGE,
    RESERVE,
    TOGETHER_TOO_LARGE,
    Explanation,
    Message,
    missing,
    sized,
    state_of,
)
from moeprof.projector.oom.capacity import (
    Capacity,
    not_loaded,
    not_reserved,
    on_chip,
    on_host,
    outside_pool,
)
from moeprof.projector.oom.failures import TORCH
from moeprof.tables.compiled_memory import NOT_REPORTED

_SMALL = 10  # a request of less than a tenth of what is held did not fill the pool
_ROUNDING = 0.01
_NEARLY_FULL = 0.05
"""Of the pool: where less than this is free, that it is free in pieces is not the point."""
_HOW_TO_KNOW = (
    "what else the pool held: the log has no allocator statistics (TF_CPP_MIN_LOG_LEVEL=0 keeps "
    "them; `moeprof capture` samples them)"
)
_HOW_TO_KNOW_ARENA = (
    "whether the request is the arena of a program's temporaries: there are no BufferAssignment "
    "stats; where it is, weights and optimizer state come on top"
)
_HOW_TO_KNOW_LIMIT = "the size of the pool: give --hardware, and --mem-fraction where it was set"


def explain(message: Message, capacity: Capacity | None = None) -> Explanation:
    """Why the allocation failed, as far as the message and the stated capacity tell."""
    found = _explained(message, capacity)
    return replace(found, who=message.failure.who, space=message.failure.space)


def _explained(message: Message, capacity: Capacity | None) -> Explanation:
    failure = message.failure
    if failure.kind == COMPILE:
        return _of_compiler(message)
    if failure.kind == PLAN:
        return _of_plan(message, capacity)
    if failure.kind == OUTSIDE:
        return outside_pool(message, capacity)
    if failure.kind == RESERVE:
        return not_reserved(message)
    if failure.kind == HOST:
        return on_host(message)
    if failure.kind == LOAD:
        return not_loaded(message)
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
    if failure.space in CHIP_SPACES:
        return on_chip(message)
    held = f", {sized(told.argument_bytes)} of it arguments" if told.argument_bytes else ""
    return Explanation(
        PROGRAM_TOO_LARGE,
        f"the program alone needs {sized(needed)}{held}, the device has {sized(limit)}: "
        f"{sized(missing(needed, limit))} too much",
        is_inside=True,
        limit_bytes=limit,
        needed_bytes=needed,
        held_bytes=0,
        excess_bytes=missing(needed, limit),
        is_arena=None,
    )


def _of_plan(message: Message, capacity: Capacity | None) -> Explanation:
    """A compiled program against the pool, where its size is stated."""
    needed = program_bytes(message)
    if needed is None:
        return Explanation(NOT_TOLD, f"the memory of the program is {NOT_REPORTED}", is_inside=None)
    if capacity is None:
        sentence = f"the program needs {sized(needed)} of XLA's pool"
        how = (_HOW_TO_KNOW_LIMIT,)
        return Explanation(NOT_TOLD, sentence, is_inside=True, needed_bytes=needed, not_told=how)
    limit = capacity.pool_bytes
    if needed > limit:
        return _too_large(needed, limit, "the program alone needs", {})
    return Explanation(
        FITS_ALONE,
        f"the program needs {sized(needed)} of a pool of {sized(limit)}: it fits where nothing "
        "else is held",
        is_inside=True,
        limit_bytes=limit,
        needed_bytes=needed,
        excess_bytes=0,
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
    state = state_of(message, limit, in_use)
    if state == COULD_NOT_GROW:
        return _not_grown(message, known)
    if state == IN_PIECES and free > _NEARLY_FULL * limit:
        largest = message.pool.largest_free_bytes
        piece = f" (the largest piece is {sized(largest)})" if largest is not None else ""
        return Explanation(
            FRAGMENTED,
            f"{sized(free)} were free, but in no piece of {sized(request)}{piece}: the pool is "
            "fragmented",
            is_inside=True,
            excess_bytes=0,
            state=IN_PIECES,
            **known,
        )
    known["state"] = FULL
    if needed is not None:
        held = max(in_use - (message.program.argument_bytes or 0), 0)
        return _of_two(held, needed, limit, excess, known)
    if request is not None and request > limit:
        return _too_large(request, limit, "the request alone is", known)
    is_eager = message.failure.who == TORCH  # each tensor is a request of its own
    if request is not None and request * _SMALL <= in_use and not is_eager:
        return Explanation(
            ALREADY_FULL,
            f"the pool was already full ({sized(in_use)} held by earlier arrays/other programs, of "
            f"{sized(limit)}); the request of {sized(request)} is not what filled it",
            is_inside=True,
            held_bytes=in_use,
            excess_bytes=excess,
            not_told=("how much of it is this program's arguments",),
            **known,
        )
    return Explanation(
        TOGETHER_TOO_LARGE,
        f"{sized(request)} were asked where {sized(in_use)} of {sized(limit)} were held: "
        f"{sized(excess)} too much",
        is_inside=True,
        excess_bytes=excess,
        not_told=("how much of what was held is this program's arguments",),
        **known,
    )


def _not_grown(message: Message, known: dict[str, Any]) -> Explanation:
    """The pool may take more, and the device had no more to give."""
    pool, failure = message.pool, message.failure
    parts = [f"{sized(failure.request_bytes)} were asked"]
    if pool.taken_bytes is not None:
        of = f" of the {sized(pool.limit_bytes)} that it may take" if pool.limit_bytes else ""
        parts.append(f"it had taken {sized(pool.taken_bytes)}{of}")
    if pool.driver_free_bytes is not None:
        parts.append(f"the device had {sized(pool.driver_free_bytes)} left")
    elif failure.refused_bytes is not None:
        parts.append(f"the driver refused {sized(failure.refused_bytes)}")
    else:
        parts.append("the device gave it no more")
    return Explanation(
        NOT_GROWN,
        f"XLA's pool could not grow: {', '.join(parts)}. Other processes, or libraries beside the "
        "pool, hold the rest",
        is_inside=False,
        state=COULD_NOT_GROW,
        not_told=("who holds the device's memory: nvidia-smi or rocm-smi tells",),
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
            f"the pool was already full ({sized(held)} held by earlier arrays/other programs, of "
            f"{sized(limit)}); this program needs {sized(needed)}, which is not what filled it",
            is_inside=True,
            held_bytes=held,
            excess_bytes=excess,
            **known,
        )
    return Explanation(
        TOGETHER_TOO_LARGE,
        f"this program needs {sized(needed)} and earlier arrays/other programs held "
        f"{sized(held)}, of {sized(limit)} together: {sized(excess)} too much",
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
        f"{subject} {sized(needed)}, the pool has {sized(limit)}: {sized(needed - limit)} too much",
        is_inside=True,
        held_bytes=held,
        excess_bytes=needed - limit,
        **{**known, "limit_bytes": limit, "needed_bytes": needed},
    )


def _without_state(message: Message, limit: int | None, request: int | None) -> Explanation:
    """What the pool held is not told."""
    needed, arena = program_bytes(message), is_arena(message)
    known: dict[str, Any] = {"is_arena": arena}
    if message.failure.refused_bytes is not None:
        return _not_grown(message, {**known, "limit_bytes": limit, "needed_bytes": needed})
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
            f"the program needs {sized(needed)} and fits the pool of {sized(limit)} alone, so "
            f"something else held more than {sized(limit - needed)} of it (or it is fragmented)",
            is_inside=True,
            limit_bytes=limit,
            needed_bytes=needed,
            is_arena=arena,
            not_told=tuple(not_told),
        )
    if free is not None:
        sentence = f"{sized(request)} were asked, {sized(free)} of the device's memory were free"
    elif request is not None and limit is not None:
        sentence = (
            f"{sized(request)} were asked in one allocation; beside it the pool of {sized(limit)} "
            f"has room for {sized(limit - request)}: weights, optimizer state and all else came to "
            "more"
        )
    else:
        sentence = f"{sized(request)} were asked, and XLA's pool had no room for them"
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
