"""Question: which out-of-memory messages does a log hold, each with what was said about it?

Lines of several processes may be mixed: each is read by itself. What is the same (a traceback that
repeats the error, ranks that fail alike) is one message.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.ingest.xspace.open_space import unreadable
from moeprof.projector.oom import (
    HOST,
    POOL,
    RESERVE,
    Failure,
    Message,
    PoolText,
)
from moeprof.projector.oom.failures import PINNED_DRIVER, failure_in
from moeprof.projector.oom.log_lines import PoolReader, ProgramReader, lines_of

_ROUNDING = 0.01
"""Two forms of one request differ by the pool's rounding up, and by digits of ``26.83GiB``."""
_RELEVANT = (
    "emory", "lloc", "ALLOC", "MEMORY", "OfMem", "uffer", "Size:", "Shape", "Operator", "XLA ",
    "=====", "InUse", "Limit", "FreeBlock", "hbm", "HBM", "HLO temp", "reserved", "arguments",
    "Output size", "n use", "n-use", "chunk", "Free  ", "padding", "possible", "oom-kill", "cuMem",
    "Subshape", "Hbm", "shared data", "on host",
)  # fmt: skip
_GZIP = b"\x1f\x8b"
_DUMP = re.compile(r"BFCAllocator dump for ([\w.\-]+)")
_DRIVER_TRIES = 0.9
"""A pool that cannot grow asks the driver for this share less, down to what it needs."""


@dataclass
class _Process:
    """What one process has said so far; readers that are filled wait for their failure."""

    program: ProgramReader = field(default_factory=ProgramReader)
    pools: dict[str, PoolReader] = field(default_factory=dict)
    allocator: str = ""
    failure: Failure | None = None
    by_allocator: dict[str, Failure] = field(default_factory=dict)
    repeats: int = 0
    devices: set[str] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)

    def take(self, text: str) -> None:
        """A line that reports no failure: of the program, or of the pool that is dumped."""
        if found := _DUMP.match(text):
            self.allocator = found[1]
        elif not self.program.take(text):
            self.pools.setdefault(self.allocator, PoolReader()).take(text)

    def fail(self, failure: Failure) -> None:
        """A failure: the same as before, told again, or the next."""
        if self.failure is not None and not _is_same(self.failure, failure):
            self.close()
        self.failure = failure if self.failure is None else _joined(self.failure, failure)
        if not failure.is_raised:
            self.allocator = failure.who
            self.by_allocator.setdefault(failure.who, failure)
        self.repeats += 1
        self.devices |= {failure.device} - {""}

    def close(self) -> None:
        """Keep the message that is told; begin another."""
        if self.failure is not None:
            self.messages += self._told(self.failure)
            self.program, self.pools, self.allocator = ProgramReader(), {}, ""
        self.failure, self.repeats, self.devices, self.by_allocator = None, 0, set(), {}

    def _told(self, failure: Failure) -> list[Message]:
        """The message, or one per pool where several pools dumped their states."""
        program = self.program.finished()
        ranks = (failure.rank,) if failure.rank else ()
        pools = {name: reader.pool for name, reader in self.pools.items()}
        dumped = [name for name in self.by_allocator if _is_dumped(pools.get(name))]
        if len(dumped) < 2:
            pool = next((p for p in pools.values() if _is_dumped(p)), PoolText())
            if not _is_dumped(pool):
                pool = next(iter(pools.values()), pool)
            devices = tuple(sorted(self.devices))
            return [Message(failure, program, pool, ranks, devices, self.repeats)]
        own = [replace(self.by_allocator[n], is_raised=failure.is_raised) for n in dumped]
        return [
            Message(one, program, pools[one.who], ranks, (one.device,) if one.device else ())
            for one in own
        ]


def read_log(path: Path) -> tuple[Message, ...]:
    """Messages of a log file, packed with gzip or not, in order; those alike are joined.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with _opened(path) as log:
            return messages_in(log)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path}: expected a log packed with gzip, found: {error}; unpack what can be unpacked "
            "(zcat) and give that"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def messages_in(log: Iterable[str]) -> tuple[Message, ...]:
    """Messages in lines of text, those first that ended a step; those alike are joined."""
    processes: dict[str, _Process] = {}
    for line in lines_of(_relevant(log)):
        process = processes.setdefault(line.rank, _Process())
        failure = failure_in(line)
        if failure is not None:
            process.fail(failure)
        else:
            process.take(line.text)
    for process in processes.values():
        process.close()
    every = [m for process in processes.values() for m in _with_refusals(process.messages)]
    ordered = sorted(every, key=lambda m: (not m.failure.is_raised, m.failure.line))
    return tuple(_alike(ordered))


def _relevant(log: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that may tell anything, with their numbers: a log may have millions of others."""
    for number, line in enumerate(log, start=1):
        if any(word in line for word in _RELEVANT):
            yield number, line


def _with_refusals(messages: Sequence[Message]) -> Iterator[Message]:
    """Messages of a process; what the driver refused to a pool that had to grow is told with it.

    The pool asks for less and less until the driver gives it or it no longer holds the request:
    so the least that was refused is at least the request, and the next try would be below it.
    """
    held: list[Message] = []
    for message in messages:
        if _is_refusal(message.failure):
            held.append(message)
            continue
        refused = _least(held[-1].failure) if held else None
        request = message.failure.request_bytes
        is_of_it = bool(held) and held[-1].failure.space == message.failure.space
        if message.failure.kind in (POOL, HOST) and is_of_it and refused and request:
            is_its = request <= refused * (1 + _ROUNDING) and refused * _DRIVER_TRIES < request * (
                1 + _ROUNDING
            )
            if is_its:
                held.pop()
                failure = replace(message.failure, refused_bytes=refused)
                message = replace(message, failure=failure)
        yield from held
        held = []
        yield message
    yield from held


def _is_refusal(failure: Failure) -> bool:
    """Whether the driver refused to give memory to a pool, of the device or of the host."""
    return failure.kind == RESERVE or failure.who == PINNED_DRIVER


def _least(failure: Failure) -> int | None:
    """The least that the driver refused."""
    return failure.refused_bytes or failure.request_bytes


def _is_dumped(pool: PoolText | None) -> bool:
    return pool is not None and pool.in_use_bytes is not None


def no_message(path: Path) -> TraceError:
    """The error for a text in which nothing ran out of memory."""
    return TraceError(
        f"{path}: expected an out-of-memory message (RESOURCE_EXHAUSTED: Out of memory, ran out of "
        "memory, NCCL or HIP out of memory), found none; give the log of the process that failed"
    )


def _is_same(one: Failure, other: Failure) -> bool:
    """Whether two lines report one failure: same memory, and as much where both tell.

    What XLA raises names no memory: it repeats what an allocator said, or the driver to it.
    """
    if one.kind == HOST and other.kind == POOL and other.is_raised:
        return other.request_bytes is not None and _is_as_much(one, other)
    if (one.kind, one.space) != (other.kind, other.space):
        return False
    return (_is_refusal(one) and _is_refusal(other)) or _is_as_much(one, other)


def _is_as_much(one: Failure, other: Failure) -> bool:
    a, b = one.request_bytes or one.needed_bytes, other.request_bytes or other.needed_bytes
    return a is None or b is None or abs(a - b) <= _ROUNDING * max(a, b)


def _joined(one: Failure, other: Failure) -> Failure:
    """The first with what the second tells besides; of two sizes the exact, smaller one."""
    sizes = [size for size in (one.request_bytes, other.request_bytes) if size is not None]
    is_refusal = _is_refusal(one) and _is_refusal(other)
    pick = max if is_refusal else min
    refused = [f.refused_bytes or f.request_bytes for f in (one, other)]
    least = min((size for size in refused if size is not None), default=None)
    return replace(
        one,
        request_bytes=pick(sizes) if sizes else None,
        free_bytes=one.free_bytes if one.free_bytes is not None else other.free_bytes,
        capacity_bytes=one.capacity_bytes or other.capacity_bytes,
        needed_bytes=one.needed_bytes or other.needed_bytes,
        device=one.device or other.device,
        is_raised=one.is_raised or other.is_raised,
        piece_bytes=one.piece_bytes if one.piece_bytes is not None else other.piece_bytes,
        program=one.program or other.program,
        refused_bytes=least if is_refusal else one.refused_bytes,
    )


def _alike(messages: Iterable[Message]) -> Iterator[Message]:
    """Messages that say the same of several ranks, as one."""
    found: list[Message] = []
    for message in messages:
        twin = next((n for n, known in enumerate(found) if _say_same(known, message)), None)
        if twin is None:
            found.append(message)
            continue
        known = found[twin]
        found[twin] = replace(
            known,
            program=known.program if known.program.is_told else message.program,
            pool=known.pool if known.pool.in_use_bytes is not None else message.pool,
            ranks=tuple(dict.fromkeys((*known.ranks, *message.ranks))),
            devices=tuple(dict.fromkeys((*known.devices, *message.devices))),
            repeats=known.repeats + message.repeats,
        )
    yield from found


def _say_same(one: Message, other: Message) -> bool:
    a, b = one.failure, other.failure
    both_told = one.program.is_told and other.program.is_told
    return (
        a.kind == b.kind
        and a.space == b.space
        and _is_as_much(a, b)
        and _is_same_state(one.pool, other.pool)
        and (not both_told or one.program.temp_bytes == other.program.temp_bytes)
    )


def _is_same_state(one: PoolText, other: PoolText) -> bool:
    """Whether two pools were as full, or of one that is not told."""
    if one.in_use_bytes is None or other.in_use_bytes is None:
        return True
    if one.limit_bytes is None or other.limit_bytes is None:
        return True
    pairs = ((one.limit_bytes, other.limit_bytes), (one.in_use_bytes, other.in_use_bytes))
    room = _ROUNDING * max(one.limit_bytes, other.limit_bytes)
    return all(abs(a - b) <= room for a, b in pairs)


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[str]]:
    """The lines of a file; opened once, since a pipe can be read once."""
    with path.open("rb") as stream:
        is_packed = stream.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
        data = gzip.GzipFile(fileobj=stream) if is_packed else stream
        yield io.TextIOWrapper(data, encoding="utf-8", errors="replace")
