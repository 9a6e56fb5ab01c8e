"""How the processes of a run ended, as `moeprof capture` wrote it down.

Exit codes and what went wrong, process by process; what several say alike is told once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_NAMED = 4
_HARD = {signal.SIGKILL: "sent by the kernel where the host's memory runs out, and by schedulers"}


@dataclass(frozen=True)
class Ending:
    """One process: its place in the run, its host, its exit code and what went wrong."""

    process: int
    host: str
    exit_code: int | None
    problems: tuple[str, ...]


def endings_of(meta: Mapping[str, object] | None) -> tuple[Ending, ...]:
    """The processes that left a record, in their order; none where there is no record."""
    processes = meta.get("processes") if meta is not None else None
    found = [row for row in _list(processes) if isinstance(row, dict)]
    return tuple(_ending(place, row) for place, row in enumerate(found))


def told(endings: Sequence[Ending]) -> list[str]:
    """What the processes say, each text once, with those of several processes that say it."""
    by_text: dict[str, list[Ending]] = {}
    for ending in endings:
        for text in _texts(ending):
            by_text.setdefault(text, []).append(ending)
    return [f"{_who(whose, len(endings))}{text}" for text, whose in by_text.items()]


def described_exit(code: int) -> str:
    """``exit code 137 (SIGKILL, …)``."""
    try:
        number = signal.Signals(code - 128)
    except ValueError:
        return f"exit code {code}"
    why = f": {_HARD[number]}" if number in _HARD else ""
    return f"exit code {code} ({number.name}{why})"


def described_seconds(seconds: float) -> str:
    """``101 s``, below 10 s with a digit: how long a command ran."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _texts(ending: Ending) -> Iterator[str]:
    yield from ending.problems
    code = ending.exit_code
    if code and not any(f"exit code {code}" in text for text in ending.problems):
        yield f"ended with {described_exit(code)}"


def _who(whose: Sequence[Ending], processes: int) -> str:
    if processes < 2:
        return ""
    if len(whose) == processes:
        return f"all {processes} processes: "
    first = [f"{one.process} ({one.host})" if one.host else f"{one.process}" for one in whose]
    more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
    word = "process" if len(first) == 1 else "processes"
    return f"{word} {', '.join(first[:_NAMED])}{more}: "


def _ending(place: int, row: Mapping[str, object]) -> Ending:
    index, code, host = row.get("process_index"), row.get("exit_code"), row.get("host")
    return Ending(
        index if isinstance(index, int) else place,
        host if isinstance(host, str) else "",
        code if isinstance(code, int) else None,
        tuple(str(problem) for problem in _list(row.get("problems"))),
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
