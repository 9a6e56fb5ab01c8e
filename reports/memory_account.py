"""Question: what fills the memory, row by row, on a terminal?"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from moeprof.answers.names import printable, shortened
from moeprof.reports import memory_words as words
from moeprof.reports.memory_document import Component, MemoryRow, StageInfo

_SIZE = 10
_BAR = 10
_CONFIDENCE = 7
_MOST_STAGES = 12
_SMALL = 0.01
"""Rows below this share of the total are put together; the JSON and the page have each."""


def account(row: MemoryRow, width: int) -> Text:
    """The components by pool: name, size, share of the total as a bar, confidence, formula."""
    lines: list[Text] = []
    for pool in words.POOLS:
        found = [part for part in row["components"] if part["pool"] == pool]
        if found:
            lines += [*_title(row, pool, width), *_rows(found, row["total_bytes"], width)]
    return Text("\n").join(lines)


def stage_table(row: MemoryRow, width: int) -> Text:
    """Every pipeline stage at its own peak; the worst is marked."""
    stages = row["stages"]
    if len(stages) < 2:
        return Text("")
    heads = ("stage", "args", "temp", "outside", "total")
    lines = [Text("".join(f"{head:>{10 if n else 7}}" for n, head in enumerate(heads)) + "  GiB",
                  style="bold")]  # fmt: skip
    kept = _kept(stages, row["worst_stage"])
    left = 0
    for place, stage in enumerate(stages):
        if place not in kept:
            left += 1
            continue
        if left:
            lines.append(Text(f"      … {left} more", style="dim"))
            left = 0
        sizes = (stage["args_bytes"], stage["temp_bytes"], stage["outside_bytes"],
                 stage["total_bytes"])  # fmt: skip
        cells = "".join(f"{'?' if s is None else words.gib(s):>10}" for s in sizes)
        is_worst = stage["stage"] == row["worst_stage"]
        end = "  ← worst" if is_worst else ""
        lines.append(Text(f"{stage['stage']:>7}{cells}{end}", style="bold" if is_worst else ""))
    return Text("\n").join(lines)


def _kept(stages: Sequence[StageInfo], worst: int) -> set[int]:
    """The first and last few stages and the worst, where there are many."""
    every = range(len(stages))
    if len(stages) <= _MOST_STAGES:
        return set(every)
    few = _MOST_STAGES // 3
    return {n for n in every if n < few or n >= len(stages) - few or stages[n]["stage"] == worst}


def _title(row: MemoryRow, pool: str, width: int) -> list[Text]:
    size = {
        "args": row["args_bytes"],
        "temp": row["temp_bytes"],
        "outside": row["outside_bytes"],
    }[pool]
    title = words.POOL_TITLES[pool]
    room = width - _SIZE - _BAR - _CONFIDENCE - 4
    line = f"{title:<{room}} {words.size(size):>{_SIZE}}"
    lines = [Text(line, style="bold")]
    if pool == "temp" and row["peaks"]:
        lines.append(Text(shortened(f" fullest in: {words.peak_name(row)}", width), style="bold"))
    return lines


def _rows(parts: Sequence[Component], whole: int | None, width: int) -> list[Text]:
    ordered = sorted(parts, key=lambda part: -(part["bytes"] or 0))
    small = [part for part in ordered if _is_small(part, whole)]
    if len(small) < 2:
        small = []
    lines = [line for part in ordered if part not in small for line in _row(part, whole, width)]
    if small:
        together = sum(part["bytes"] or 0 for part in small)
        name = f"{len(small)} more below 1 % each"
        told = _cells(name, words.size(together), width)
        lines.append(Text(f"{told}", style="dim"))
    return lines


def _is_small(part: Component, whole: int | None) -> bool:
    size = part["bytes"]
    return size is not None and whole is not None and size < whole * _SMALL


def _cells(name: str, size: str, width: int) -> str:
    room = width - _SIZE - _BAR - _CONFIDENCE - 5
    return f" {shortened(name, room):<{room}} {size:>{_SIZE}}"


def _row(part: Component, whole: int | None, width: int) -> list[Text]:
    """One component, and below it its formula."""
    size = part["bytes"]
    room = width - _SIZE - _BAR - _CONFIDENCE - 5
    bar = words.bar(size / whole, _BAR) if size and whole else ""
    name, *below = textwrap.wrap(printable(part["name"]), room) or [""]
    told = Text(f" {name:<{room}} {words.size(size):>{_SIZE}}  ")
    told.append(f"{bar:<{_BAR}}", "cyan").append(f" {part['confidence']}")
    formula = textwrap.wrap(
        printable(part["formula"]), width - 3, break_on_hyphens=False, break_long_words=False
    )
    return [told, *[Text(f" {line}") for line in below],
            *[Text(f"   {line}", style="dim") for line in formula]]  # fmt: skip
