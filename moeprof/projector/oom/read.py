"""Question: which out-of-memory messages does a log hold, each with what was said about it?

Lines of several processes may be mixed: each is read by itself. What is the same (a traceback that
repeats the error, ranks that fail alike) is one message.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.ingest.unreadable import unreadable
from moeprof.projector.oom.failures import failure_in
from moeprof.projector.oom.log_lines import lines_of
from moeprof.projector.oom.message import Failure, Message
from moeprof.projector.oom.pool_text import PoolReader
from moeprof.projector.oom.program_text import ProgramReader

_ROUNDING = 0.01
"""Two forms of one request differ by the pool's rounding up, and by digits of ``26.83GiB``."""
_RELEVANT = (
    "emory", "lloc", "ALLOC", "MEMORY", "OfMem", "uffer", "Size:", "Shape", "Operator", "XLA ",
    "=====", "InUse", "Limit", "FreeBlock", "hbm", "HBM", "HLO temp", "reserved", "arguments",
    "Output size", "n use", "n-use", "chunk", "Free  ", "padding", "possible", "oom-kill", "cuMem",
)  # fmt: skip
_GZIP = b"\x1f\x8b"


@dataclass
class _Process:
    """What one process has said so far; readers that are filled wait for their failure."""

    program: ProgramReader = field(default_factory=ProgramReader)
    pool: PoolReader = field(default_factory=PoolReader)
    failure: Failure | None = None
    repeats: int = 0
    devices: set[str] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)

    def fail(self, failure: Failure) -> None:
        """A failure: the same as before, told again, or the next."""
        if self.failure is not None and not _is_same(self.failure, failure):
            self.close()
        self.failure = failure if self.failure is None else _joined(self.failure, failure)
        self.repeats += 1
        self.devices |= {failure.device} - {""}

    def close(self) -> None:
        """Keep the message that is told; begin another."""
        if self.failure is not None:
            self.messages.append(
                Message(
                    self.failure,
                    self.program.finished(),
                    self.pool.pool,
                    (self.failure.rank,) if self.failure.rank else (),
                    tuple(sorted(self.devices)),
                    self.repeats,
                )
            )
            self.program, self.pool = ProgramReader(), PoolReader()
        self.failure, self.repeats, self.devices = None, 0, set()


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
        elif not process.program.take(line.text):
            process.pool.take(line.text)
    for process in processes.values():
        process.close()
    every = [message for process in processes.values() for message in process.messages]
    ordered = sorted(every, key=lambda m: (not m.failure.is_raised, m.failure.line))
    return tuple(_alike(ordered))


def _relevant(log: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that may tell anything, with their numbers: a log may have millions of others."""
    for number, line in enumerate(log, start=1):
        if any(word in line for word in _RELEVANT):
            yield number, line


def no_message(path: Path) -> TraceError:
    """The error for a text in which nothing ran out of memory."""
    return TraceError(
        f"{path}: expected an out-of-memory message (RESOURCE_EXHAUSTED: Out of memory, ran out of "
        "memory, NCCL or HIP out of memory), found none; give the log of the process that failed"
    )


def _is_same(one: Failure, other: Failure) -> bool:
    """Whether two lines report one failure: same kind, and as much where both tell."""
    if one.kind != other.kind or (one.device and other.device and one.device != other.device):
        return one.kind == other.kind and _is_as_much(one, other)
    return _is_as_much(one, other) or one.kind == "reserve"


def _is_as_much(one: Failure, other: Failure) -> bool:
    a, b = one.request_bytes or one.needed_bytes, other.request_bytes or other.needed_bytes
    return a is None or b is None or abs(a - b) <= _ROUNDING * max(a, b)


def _joined(one: Failure, other: Failure) -> Failure:
    """The first with what the second tells besides; of two sizes the exact, smaller one."""
    sizes = [size for size in (one.request_bytes, other.request_bytes) if size is not None]
    pick = max if one.kind == "reserve" else min
    return replace(
        one,
        request_bytes=pick(sizes) if sizes else None,
        free_bytes=one.free_bytes if one.free_bytes is not None else other.free_bytes,
        capacity_bytes=one.capacity_bytes or other.capacity_bytes,
        needed_bytes=one.needed_bytes or other.needed_bytes,
        device=one.device or other.device,
        is_raised=one.is_raised or other.is_raised,
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
        and (not both_told or one.program.temp_bytes == other.program.temp_bytes)
    )


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[str]]:
    """The lines of a file; opened once, since a pipe can be read once."""
    with path.open("rb") as stream:
        is_packed = stream.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
        data = gzip.GzipFile(fileobj=stream) if is_packed else stream
        yield io.TextIOWrapper(data, encoding="utf-8", errors="replace")
