"""Question: when does each piece of a pipeline's work run, and when at the earliest?

Every stage works through its order, each piece as soon as the stage is free and what the piece
needs is there. Nothing is reordered: a stage waits for the next piece of its order even where a
later one could run, as the frameworks do.

Where a stage's work is given as a whole (`StageWork`), its chunks share it evenly. The first layers
of the model also embed and the last ones hold the head and the loss: that work is on top, in the
chunk where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from moeprof.errors import SpecError
from moeprof.specs.schedule import Schedule, stage_at
from moeprof.specs.schedule_order import KINDS, order_arrays

MOST_PIECES = 1_000_000
MOST_STAGES = 512
MOST_NS = 2**62
"""Of all pieces together, one after the other: times are int64."""
_INPUT, _NOT_YET = -1, -1
_FORWARD, _BACKWARD, _WEIGHT = range(len(KINDS))


@dataclass(frozen=True, eq=False)
class StageTimes:
    """How long pieces take.

    ``work_ns`` is int64 [kinds, stages, chunks], kinds as in `KINDS`; where a schedule does not
    split backward work, the last two kinds are one piece. ``transfer_ns`` is what a result takes
    to the neighbouring stage (latency and bytes over bandwidth); where transfers do not overlap
    with work, the sender does nothing else meanwhile.
    """

    work_ns: np.ndarray
    transfer_ns: int = 0
    is_overlapped: bool = True


@dataclass(frozen=True, eq=False)
class Played:
    """One iteration: for each stage its pieces, in its order; int64 [stages, pieces] all.

    ``kind`` is the place in `KINDS`; ``start_ns`` counts from the begin of the iteration.
    """

    kind: np.ndarray
    chunk: np.ndarray
    microbatch: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray

    @property
    def iteration_ns(self) -> int:
        """Until the last stage is done."""
        return int((self.start_ns[:, -1] + self.duration_ns[:, -1]).max())

    @property
    def longest_stage_ns(self) -> int:
        """The longest time of a stage from its first piece to the end of its last."""
        return int((self.start_ns[:, -1] + self.duration_ns[:, -1] - self.start_ns[:, 0]).max())

    @property
    def work_ns(self) -> np.ndarray:
        """Work of each stage, int64 [stages]."""
        work: np.ndarray = self.duration_ns.sum(axis=1)
        return work

    def bubbles(self) -> np.ndarray:
        """Share of the iteration in which each stage is idle, float64 [stages]."""
        whole = self.iteration_ns
        return 1 - self.work_ns / whole if whole else np.full(len(self.kind), np.nan)

    def held(self) -> np.ndarray:
        """Chunks whose activations a stage holds, after each of its pieces; int64 [stages, pieces].

        From the begin of forward work until the end of the last backward work of the same chunk and
        microbatch.
        """
        last = self.kind.max()
        change = np.where(self.kind == _FORWARD, 1, np.where(self.kind == last, -1, 0))
        return np.cumsum(change, axis=1)


def play(schedule: Schedule, times: StageTimes, *, is_forward_only: bool = False) -> Played:
    """When every piece runs.

    Raises:
        SpecError: there are more than `MOST_STAGES` or `MOST_PIECES`, they take longer than
            `MOST_NS`, or the order cannot be (see `order_arrays`).
    """
    passes = 1 if is_forward_only else schedule.passes
    pieces = schedule.stages * schedule.microbatches * schedule.chunks * passes
    if pieces > MOST_PIECES:
        raise SpecError(
            f"{schedule.name}: expected at most {MOST_PIECES:,} pieces, found {pieces:,}."
        )
    if schedule.stages > MOST_STAGES:
        raise SpecError(
            f"{schedule.name}: expected at most {MOST_STAGES} stages, found {schedule.stages:,}."
        )
    longest = pieces * (int(times.work_ns.max()) + times.transfer_ns)
    if longest > MOST_NS:
        raise SpecError(
            f"{schedule.name}: expected an iteration of less than {MOST_NS / 1e9:.3g} s, found "
            f"{pieces:,} pieces that add up to {longest / 1e9:.3g} s."
        )
    stages = range(schedule.stages)
    orders = [order_arrays(schedule, s, is_forward_only=is_forward_only) for s in stages]
    kind, chunk, microbatch = (np.stack(part) for part in zip(*orders, strict=True))
    work = np.array(times.work_ns, dtype="int64")
    if not schedule.splits_backward:
        work[1] += work[2]
    duration = work[kind, np.arange(schedule.stages)[:, None], chunk]
    start = _starts(schedule, times, (kind, chunk, microbatch), duration)
    return Played(kind, chunk, microbatch, start, duration)


def _starts(
    schedule: Schedule,
    times: StageTimes,
    pieces: tuple[np.ndarray, np.ndarray, np.ndarray],
    duration: np.ndarray,
) -> np.ndarray:
    """Earliest starts in the order given, int64 [stages, pieces].

    Plain loops: each start depends on the one before it. A stage runs until it needs a piece that
    is not done, and goes on when that piece ends; no two stages wait for the same piece.
    """
    own, needed, is_sent = _dependencies(schedule, pieces)
    late = np.where(is_sent, times.transfer_ns, 0)
    busy = late * (not times.is_overlapped)
    columns = [part.tolist() for part in (own, needed, duration, late, busy)]
    queues = [zip(*(column[s] for column in columns), strict=True) for s in range(schedule.stages)]
    starts: list[list[int]] = [[] for _ in queues]
    free = [0] * schedule.stages
    count = len(KINDS) * schedule.stages * schedule.chunks * schedule.microbatches
    there = [_NOT_YET] * count + [0]  # the last one is `_INPUT`
    waits: dict[int, tuple[int, tuple[int, ...]]] = {}
    able = [(s, next(queue)) for s, queue in enumerate(queues)]
    while able:
        stage, piece = able.pop()
        queue, begun, now = queues[stage], starts[stage], free[stage]
        while True:
            mine, need, length, after, occupied = piece
            ready = there[need]
            if ready == _NOT_YET:
                waits[need] = stage, piece
                break
            if ready > now:  # max() would take a third of the time of the loop
                now = ready
            begun.append(now)
            there[mine] = now + length + after
            now += length + occupied
            if mine in waits:
                able.append(waits.pop(mine))
            following = next(queue, None)
            if following is None:
                break
            piece = following
        free[stage] = now
    return np.array(starts, dtype="int64")


def _dependencies(
    schedule: Schedule, pieces: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of each piece, of the one whose result it needs, whether its own result is sent.

    `_INPUT` is what the pipeline begins with.
    """
    kind, chunk, microbatch = pieces
    p, v, m = schedule.stages, schedule.chunks, schedule.microbatches
    way = np.array([stage_at(schedule.name, p, depth) for depth in range(p * v)])
    depth_of = np.empty((p, v), dtype="int64")
    depth_of[way[:, 0], way[:, 1]] = np.arange(p * v)
    stage = np.broadcast_to(np.arange(p)[:, None], kind.shape)
    depth = depth_of[stage, chunk]
    last = p * v - 1

    def number(kind: np.ndarray, depth: np.ndarray) -> np.ndarray:
        found: np.ndarray = (kind * p * v + depth) * m + microbatch
        return found

    # W needs its own B, the last B its own forward; the rest a neighbour's piece of their kind
    is_turned = (kind == _WEIGHT) | ((kind == _BACKWARD) & (depth == last))
    step = np.where(is_turned, 0, np.where(kind == _FORWARD, -1, 1))
    needed = number(np.where(is_turned, kind - 1, kind), depth + step)
    needed = np.where((kind == _FORWARD) & (depth == 0), _INPUT, needed)
    receiver = np.clip(np.where(kind == _FORWARD, depth + 1, depth - 1), 0, last)
    is_sent = (kind != _WEIGHT) & (way[receiver, 0] != stage)
    return number(kind, depth), needed, is_sent


@dataclass(frozen=True)
class StageWork:
    """Work of the stages for one microbatch, and what lies between them.

    ``total_ns`` is forward and backward together: one number for each stage, or one for all.
    ``shares`` are the parts of it that are forward, gradient of the input, and of the weights; any
    three numbers, as only their ratio counts. ``embedding_ns`` and ``head_ns`` come on top of the
    first and the last layers, in the same parts. ``transfer_ns`` and ``is_overlapped``: see
    `StageTimes`.

    Raises:
        SpecError: a time is negative, there is none at all, or the shares are not a ratio.
    """

    total_ns: tuple[int, ...]
    shares: tuple[int, int, int] = (1, 1, 1)
    embedding_ns: int = 0
    head_ns: int = 0
    transfer_ns: int = 0
    is_overlapped: bool = True

    def __post_init__(self) -> None:
        """Refuse what no time can be."""
        extra = (self.embedding_ns, self.head_ns, self.transfer_ns)
        if not self.total_ns or min(self.total_ns) < 1 or min(extra) < 0:
            raise SpecError(
                f"stage work: expected positive times, found {self.total_ns} ns of the stages and "
                f"{extra} ns of embedding, head and transfer."
            )
        if min(self.shares) < 0 or not any(self.shares):
            raise SpecError(f"stage work: expected shares of 0 or more, found {self.shares}.")


def times_of(schedule: Schedule, work: StageWork) -> StageTimes:
    """Times of each piece of work, in whole ns.

    Raises:
        SpecError: there are neither as many times as stages nor one.
    """
    totals = work.total_ns * schedule.stages if len(work.total_ns) == 1 else work.total_ns
    if len(totals) != schedule.stages:
        raise SpecError(
            f"stage work: expected {schedule.stages} times, one per stage, or one for all; "
            f"found {len(totals)}."
        )
    pieces = np.empty((3, schedule.stages, schedule.chunks), dtype="int64")
    for stage, total_ns in enumerate(totals):
        pieces[:, stage] = np.array(_parts(total_ns // schedule.chunks, work.shares))[:, None]
    ends = ((0, work.embedding_ns), (schedule.stages * schedule.chunks - 1, work.head_ns))
    for depth, extra_ns in ends:
        stage, chunk = stage_at(schedule.name, schedule.stages, depth)
        pieces[:, stage, chunk] += _parts(extra_ns, work.shares)
    return StageTimes(pieces, work.transfer_ns, work.is_overlapped)


def _parts(total_ns: int, shares: tuple[int, int, int]) -> list[int]:
    """Whole ns that add up to the total: the last part is rounded with what is left."""
    first = round(Fraction(total_ns * shares[0], sum(shares)))
    second = round(Fraction(total_ns * (shares[0] + shares[1]), sum(shares))) - first
    return [first, second, total_ns - first - second]
