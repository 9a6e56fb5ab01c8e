"""How a pool was when it had no room: full, in pieces, or not able to grow."""

from __future__ import annotations

from moeprof.projector.oom.message import Message

FULL = "full"
IN_PIECES = "fragmented"
COULD_NOT_GROW = "could_not_grow"
_ROUNDING = 0.01
"""What a pool took may be written with two decimals, its limit exactly."""


def state_of(message: Message, limit: int, in_use: int) -> str:
    """The state by sizes alone; empty where the request is not known.

    A pool that is allowed to take more tries that first: it fails for want of growth where what it
    may still take would hold the request, or where the driver said that it refused.
    """
    request, pool = message.failure.request_bytes, message.pool
    if message.failure.refused_bytes is not None:
        return COULD_NOT_GROW
    if request is None:
        return ""
    if request > limit - in_use:
        return FULL
    if pool.driver_free_bytes is not None and pool.driver_free_bytes < request:
        return COULD_NOT_GROW
    room = 0 if pool.taken_bytes is None else limit - pool.taken_bytes
    return COULD_NOT_GROW if room > _ROUNDING * limit and room >= request else IN_PIECES
