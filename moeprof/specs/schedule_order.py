"""Question: in which order does each stage of a pipeline work, and when at the earliest?

GPipe runs all forward work and then all backward work in reverse (Huang et al. 2019, arXiv
1811.06965); the circular schedule does the same, each microbatch going round once per chunk (Xu et
al. 2021, arXiv 2105.04663). 1F1B runs p − 1 − s forwards ahead on stage s, then alternates; the
interleaved schedule runs 2 · (p − 1 − s) + (v − 1) · p ahead, p microbatches of a chunk in a row
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule

MOST_PIECES = 200_000


class Piece(NamedTuple):
    """One chunk of layers of one stage for one microbatch."""

    stage: int
    is_backward: bool
    chunk: int
    microbatch: int


class Times(NamedTuple):
    """How long a piece takes, in ns."""

    forward_ns: int
    backward_ns: int


def order_of_work(schedule: Schedule, stage: int, *, is_forward_only: bool = False) -> list[Piece]:
    """What `stage` does, in its order.

    Raises:
        SpecError: the interleaved schedule takes microbatches in groups of as many as stages.
    """
    p, m, v = schedule.stages, schedule.microbatches, schedule.chunks
    if schedule.name == "interleaved":
        schedule.check_groups()
        slots = [(r % (p * v) // p, r // (p * v) * p + r % p) for r in range(m * v)]
    else:
        slots = [(r // m, r % m) for r in range(m * v)]
    forward = [Piece(stage, False, chunk, microbatch) for chunk, microbatch in slots]
    if is_forward_only:
        return forward
    if schedule.name in ("gpipe", "circular"):
        return forward + [piece._replace(is_backward=True) for piece in reversed(forward)]
    backward = [Piece(stage, True, v - 1 - chunk, microbatch) for chunk, microbatch in slots]
    ahead = p - 1 - stage
    if schedule.name == "interleaved":
        ahead = 2 * ahead + (v - 1) * p
    return list(_alternating(forward, backward, min(ahead, len(forward))))


def _alternating(forward: list[Piece], backward: list[Piece], ahead: int) -> Iterator[Piece]:
    yield from forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        yield one
        yield other
    yield from backward[len(forward) - ahead :]


def earliest_starts(
    schedule: Schedule, times: Times, *, is_forward_only: bool = False
) -> dict[Piece, int]:
    """Start in ns of every piece, each as soon as its stage and what it needs are done.

    Handing results on takes no time.

    Raises:
        SpecError: there are more than `MOST_PIECES`, or the order cannot be (see `order_of_work`).
    """
    pieces = schedule.stages * schedule.rounds * 2
    if pieces > MOST_PIECES:
        raise SpecError(
            f"{schedule.name}: expected at most {MOST_PIECES:,} pieces, found {pieces:,}."
        )
    queues = [
        order_of_work(schedule, stage, is_forward_only=is_forward_only)
        for stage in range(schedule.stages)
    ]
    starts: dict[Piece, int] = {}
    ends: dict[Piece, int] = {}
    free, place = [0] * schedule.stages, [0] * schedule.stages
    waiting = set(range(schedule.stages))
    while waiting:
        for stage in sorted(waiting):
            while place[stage] < len(queues[stage]):
                piece = queues[stage][place[stage]]
                needed = _needed(piece, schedule)
                if needed is not None and needed not in ends:
                    break
                starts[piece] = max(free[stage], ends[needed] if needed else 0)
                length = times.backward_ns if piece.is_backward else times.forward_ns
                free[stage] = ends[piece] = starts[piece] + length
                place[stage] += 1
        waiting = {s for s in waiting if place[s] < len(queues[s])}
    return starts


def _needed(piece: Piece, schedule: Schedule) -> Piece | None:
    """The piece whose result it works on; None where that is the pipeline's input."""
    stage, is_backward, chunk, _ = piece
    first, last = 0, schedule.stages - 1
    if not is_backward:
        if stage > first:
            return piece._replace(stage=stage - 1)
        return piece._replace(stage=last, chunk=chunk - 1) if chunk else None
    if stage < last:
        return piece._replace(stage=stage + 1)
    if chunk < schedule.chunks - 1:
        return piece._replace(stage=first, chunk=chunk + 1)
    return piece._replace(is_backward=False)
