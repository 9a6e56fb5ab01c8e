"""Question: what is at a path that may tell of an out-of-memory failure?

A log; a run folder (its ``oom.txt``, and the memory statistics that `moeprof capture` kept); or a
compiled program that the compiler wrote to files: it failed nowhere, but shows what it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from moeprof.analyzers.heap.at_peak import main_module
from moeprof.errors import TraceError
from moeprof.ingest.dump import is_dump, open_dump
from moeprof.ingest.xspace.open_space import unreadable
from moeprof.projector.oom import PLAN, Failure, Message, PoolText, ProgramText
from moeprof.projector.oom.contents import buffers_at_peak, listed_buffers
from moeprof.projector.oom.read import no_message, read_log
from moeprof.tables.compiled_memory import NOT_REPORTED, CompiledMemory, compiled_memory

OOM_TEXT = "oom.txt"
_ROUNDING = 0.01


class Told(NamedTuple):
    """A message, what lies in memory as `LISTED`, and notes on where figures come from."""

    message: Message
    buffers: pd.DataFrame
    notes: tuple[str, ...] = ()


def read_oom(path: Path) -> tuple[Told, ...]:
    """What is told at a path.

    Raises:
        TraceError: nothing is there, it cannot be read, or nothing in it ran out of memory.
    """
    if not path.exists():
        raise TraceError(f"{path}: no such file or folder; give a log or a run folder")
    if (path / OOM_TEXT).is_file():
        return _of_run(path)
    if is_dump(path):
        return (_of_dump(path),)
    if path.is_dir():
        raise TraceError(
            f"{path}: expected {OOM_TEXT} of a captured run, or compiled programs "
            "(*.hlo.pb, *buffer-assignment.txt), found neither; give the log of the process that "
            "failed"
        )
    messages = read_log(path)
    if not messages:
        raise no_message(path)
    return tuple(Told(message, listed_buffers(message.program)) for message in messages)


def _of_run(run: Path) -> tuple[Told, ...]:
    messages = read_log(run / OOM_TEXT)
    if not messages:
        raise no_message(run / OOM_TEXT)
    records = list(_records(run))
    return tuple(_with_records(message, records) for message in messages)


def _with_records(message: Message, records: list[Mapping[str, object]]) -> Told:
    """The message with the pool's limit and the program's sizes, where capture knows them."""
    notes = []
    limits, last = _limits(records)
    if message.pool.limit_bytes is None and limits:
        message = replace(message, pool=replace(message.pool, limit_bytes=max(limits)))
        notes.append("the pool's limit is that of the samples of moeprof capture")
        if last is not None:
            notes.append(
                f"at the last sample before, {last / 2**30:.1f} GiB of it were in use on the "
                "fullest device"
            )
    programs = [program for record in records for program in _list(record.get("programs"))]
    name, found = _program_of(message, programs)
    if found is not None and message.program.temp_bytes is None:
        sizes = {
            part: getattr(found, f"{part}_bytes")
            for part in ("argument", "output", "alias", "temp")
        }
        told = replace(message.program, **{f"{part}_bytes": size for part, size in sizes.items()})
        message = replace(message, program=told)
        notes.append(f"the request is the arena of {name}, whose sizes moeprof capture kept")
    elif programs and not any(compiled_memory(program).is_reported for program in programs):
        notes.append(f"memory of the compiled programs: {NOT_REPORTED}")
    return Told(message, listed_buffers(message.program), tuple(notes))


def _program_of(
    message: Message, programs: Sequence[Mapping[str, object]]
) -> tuple[str, CompiledMemory | None]:
    """The program whose arena is as large as the request."""
    request = message.failure.request_bytes
    for program in programs:
        found = compiled_memory(program)
        if request and found.temp_bytes and abs(found.temp_bytes - request) <= _ROUNDING * request:
            return str(program.get("program", "")), found
    return "", None


def _records(run: Path) -> Iterator[Mapping[str, object]]:
    """``memory/p<k>.json`` of all processes; a damaged one tells nothing."""
    for file in sorted((run / "memory").glob("p*.json")):
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise unreadable(file, error) from error
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict):
            yield told


def _limits(records: list[Mapping[str, object]]) -> tuple[list[int], int | None]:
    """Limits of the devices' pools, and what the fullest held at the last sample."""
    windows = [samples for record in records for samples in samples_of(record)]
    limits = [stats["bytes_limit"] for known in windows for stats in stats_of(known, "bytes_limit")]
    in_use = [
        stats["bytes_in_use"] for known in windows for stats in stats_of(known[-1:], "bytes_in_use")
    ]
    return limits, max(in_use, default=None)


def samples_of(record: Mapping[str, object]) -> Iterator[list[dict[str, object]]]:
    """The samples of each window of a process, in the order of time."""
    for window in _list(record.get("windows")):
        samples = [window.get("before"), *_list(window.get("in")), window.get("after")]
        yield [sample for sample in samples if isinstance(sample, dict)]


def stats_of(samples: Iterable[Mapping[str, object]], name: str) -> Iterator[dict[str, int]]:
    """Statistics of each device's allocator that have a whole number of that name."""
    for sample in samples:
        devices = sample.get("devices")
        for stats in devices.values() if isinstance(devices, dict) else ():
            if isinstance(stats, dict) and isinstance(stats.get(name), int):
                yield stats


def _list(value: object) -> list[dict[str, object]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _of_dump(path: Path) -> Told:
    trace = open_dump(path)
    module = main_module(trace)
    stated = trace.modules[trace.modules["module"].eq(module)].iloc[0]
    sizes = {
        f"{part}_bytes": int(stated[f"{part}_bytes"]) if stated[f"{part}_bytes"] >= 0 else None
        for part in ("argument", "output", "alias", "temp", "constant")
    }
    program = ProgramText(**sizes)  # type: ignore[arg-type]
    failure = Failure(PLAN, str(stated["name"]), 0, "")
    notes = (f"program {stated['name']}, as its compiler planned it", *trace.meta.notes)
    return Told(Message(failure, program, PoolText()), buffers_at_peak(trace, module), notes)
