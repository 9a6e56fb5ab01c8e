"""Question: how does a memory projection read on a terminal?

First what fits, then the account of one cell, then what to do. Drawn from the document alone;
colour only repeats what marks and words say.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

from moeprof.answers.names import printable
from moeprof.reports import memory_words as words
from moeprof.reports.memory_account import account, stage_table
from moeprof.reports.memory_document import LeverInfo, MemoryDocument, MemoryRow

WIDTH = 80
_LEAST_WIDTH = 40
_STYLES = {"fits": "green", "borderline": "yellow", "oom": "red", "unknown": "magenta"}
_GAP = 2
_FEW_LEVERS = 6
# A figure and its unit stay on one line.
_UNIT = re.compile(r" (%|GiB|B|×)(?=\W|$)")


def drawn(document: MemoryDocument, width: int = WIDTH) -> Text:
    """The whole projection in lines of at most `width` columns, from 40 to 80."""
    width = max(_LEAST_WIDTH, min(width, WIDTH))
    row = words.shown(document)
    blocks = [
        _heading(document, width),
        _said(document, width),
        _grid(document, width),
        _ends(document, width),
        _verdict(document, width),
        account(row, width),
        stage_table(row, width),
        _compiled(row, width),
        _levers(document, width),
        _limits(document, row, width),
        _notes(row["notes"], width),
        _next(document, width),
    ]
    return Text("\n\n").join(block for block in blocks if block.plain)


def wrapped(text: str, width: int, *, indent: str = "", style: str = "") -> list[Text]:
    """Lines of whole words; what follows the first is indented."""
    whole = _UNIT.sub("\u00a0\\1", printable(text))
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_on_hyphens=False)
    return [Text(line.replace("\u00a0", " "), style=style) for line in lines]


def _heading(document: MemoryDocument, width: int) -> Text:
    lines = [
        *_joined(words.model_line(document), width, "bold"),
        *_joined(words.plan_line(document), width),
        *_joined(words.pool_line(document), width),
    ]
    return Text("\n").join(lines)


def _joined(line: str, width: int, style: str = "") -> list[Text]:
    """Parts between ``·`` stay whole where they can."""
    lines = [""]
    for part in line.split(" · "):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return [text for line in lines for text in wrapped(line, width, indent="  ", style=style)]


def _said(document: MemoryDocument, width: int) -> Text:
    return _list(document["said"], width, "dim")


def _grid(document: MemoryDocument, width: int) -> Text:
    """Strategies against pdbs; where the columns do not fit, the grid goes on below."""
    names, batches = words.strategies(document), words.batches(document)
    if batches == [None]:
        return Text("")
    table = [[words.row_at(document, name, pdbs) for pdbs in batches] for name in names]
    marks = [["" if row is None else words.mark(row) for row in line] for line in table]
    heads = [str(pdbs) for pdbs in batches]
    cell = max(map(len, [*heads, *(mark for line in marks for mark in line)])) + _GAP
    ends = [words.largest(document, name) for name in names]
    first = max(map(len, [*names, "strategy"])) + 2
    last = max(map(len, [*ends, "largest"])) + _GAP
    room = max(1, (width - first - len("pdbs") - last) // cell)
    lines: list[Text] = []
    for start in range(0, len(batches), room):
        part = slice(start, start + room)
        head = f" {'strategy':<{first - 1}}pdbs" + "".join(f"{h:>{cell}}" for h in heads[part])
        lines.append(Text(head + f"{'largest':>{last}}", style="bold"))
        for name, row, shown, end in zip(names, table, marks, ends, strict=True):
            line = Text(f" {name:<{first - 1}}{'':4}")
            for found, mark in zip(row[part], shown[part], strict=True):
                line.append(f"{mark:>{cell}}", "" if found is None else _STYLES[found["verdict"]])
            lines.append(line.append(f"{end:>{last}}"))
    return Text("\n").join([*lines, *_legend(document, width)])


def _legend(document: MemoryDocument, width: int) -> list[Text]:
    rows = document["rows"]
    found = {row["verdict"] for row in rows}
    parts = []
    if "fits" in found:
        parts.append("✓ fits")
    if "borderline" in found:
        parts.append("~ within 5 % of the limit")
    if any(r["verdict"] == "oom" and words.is_inside(r) for r in rows):
        parts.append("✗+3.2 out of memory by 3.2 GiB")
    if any(words.is_outside(r) and not words.is_inside(r) for r in rows):
        parts.append("✗out too much beside the pool")
    if "unknown" in found:
        parts.append("? cannot be told")
    return [Text(f" {line}", style="dim") for line in textwrap.wrap("  ".join(parts), width - 1)]


def _ends(document: MemoryDocument, width: int) -> Text:
    """What breaks first, by strategy: at one more than the largest batch."""
    lines = [Text("First to break", style="bold")]
    for name, end in document["first_to_break"].items():
        if end is not None and end["what"]:
            lines += wrapped(f" {name} at {end['pdbs']}: {end['what']}", width, indent="   ")
    return Text("\n").join(lines) if lines[1:] else Text("")


def _verdict(document: MemoryDocument, width: int) -> Text:
    told = words.summary_lines(document)
    return Text("\n").join(line for text in told for line in wrapped(text, width, style="bold"))


def _compiled(row: MemoryRow, width: int) -> Text:
    if "compiled" not in row:
        return Text("")
    from moeprof.reports.memory_compiled import compiled_text  # brings pandas

    return compiled_text(row, row["compiled"], width)


def _levers(document: MemoryDocument, width: int) -> Text:
    """What would make the nearest miss fit."""
    row = words.near_miss(document)
    if row is None or not row["levers"]:
        return Text("")
    lines = wrapped(words.miss_title(row), width, style="bold")
    found = row["levers"]
    for lever in found[:_FEW_LEVERS]:
        lines += _lever(lever, width)
    if found[_FEW_LEVERS:]:
        lines.append(Text(f"{'':13}and {len(found) - _FEW_LEVERS} more: --json", style="dim"))
    return Text("\n").join(lines)


def _lever(lever: LeverInfo, width: int) -> list[Text]:
    text = f"{lever['name']}: {words.THEN[lever['verdict']]} ({lever['price']})"
    first, *rest = textwrap.wrap(printable(text), width - 13, break_on_hyphens=False)
    return [
        Text(f" {words.saving(lever):>10}  {first}"),
        *[Text(f"{'':13}{line}") for line in rest],
    ]


def _limits(document: MemoryDocument, row: MemoryRow, width: int) -> Text:
    told = words.limits(document, row)
    return Text("\n").join(line for text in told for line in wrapped(text, width))


def _notes(notes: Sequence[str], width: int) -> Text:
    return _list(notes, width, "")


def _list(sentences: Sequence[str], width: int, style: str) -> Text:
    lines = []
    for sentence in sentences:
        lines += wrapped(f" - {sentence}", width, indent="   ", style=style)
    return Text("\n").join(lines)


def _next(document: MemoryDocument, width: int) -> Text:
    steps = words.next_steps(document)
    return Text("\n").join(line for step in steps for line in wrapped(step, width, style="dim"))
