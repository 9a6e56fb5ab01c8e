"""Question: which process says each line of a log, and what, without what loggers put before it?

Launchers label lines (``[rank3]:``, ``3: `` of ``srun -l``, ``[1,3]<stderr>:``, ``(Worker
pid=7)``), and loggers write date, level, file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\[(?:\d{1,2};)*\d{1,2}m")
_RANKS = (
    re.compile(r"\[(?:default|rank|Rank )?(\d+)\]:\s?"),
    re.compile(r"\[(?:rank|Rank )\s?(\d+)\]\s?"),
    re.compile(r"(?:rank|Rank)[ =]?(\d+)\s?[:|]\s?"),
    re.compile(r"\[\d+,(\d+)\]<std(?:err|out)>:\s?"),
    re.compile(r"(\d+): "),
    re.compile(r"\(\w+ (?:rank|pid)=(\d+)(?:, ip=[\d.]+)?\)\s?"),
    re.compile(r"[\w.\-]+:\d+:\d+ \[(\d+)\] "),
)
_LOGGERS = (
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+"),
    re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./+\-]+:\d+\]\s?"),
    re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+(?::\d+)?\s+\d+ [\w./+\-]+:\d+\]\s?"),
    re.compile(r"[IWEF]\s+(?:\d+ )?[\w./+\-]+:\d+\]\s?"),
    re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)(?::[\w.]+)?:\s?"),
    re.compile(r"> "),
)


class Line(NamedTuple):
    """A line: its number in the log from 1, who says it (empty where not told), and what."""

    number: int
    rank: str
    text: str


def lines_of(log: Iterable[tuple[int, str]]) -> Iterator[Line]:
    """Numbered lines that say anything, without escape sequences, labels and outer spaces."""
    for number, raw in log:
        text, rank = _ESCAPES.sub("", raw).strip(), ""
        while True:
            found = next((m for p in _RANKS if (m := p.match(text))), None)
            if found is not None:
                rank, text = rank or found[1], text[found.end() :].lstrip()
                continue
            found = next((m for p in _LOGGERS if (m := p.match(text))), None)
            if found is None:
                break
            text = text[found.end() :].lstrip()
        if text:
            yield Line(number, rank, text)
