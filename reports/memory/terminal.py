"""Question: how does a memory projection read on a terminal?

First whether it fits, by how much and how sure that is, then what fits, then the account of one
cell row by row, with the compiler's plan of the same step beside it where that was asked for, then
what to do. Drawn from the document alone; colour only repeats what marks and words say.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

from moeprof.answers.values import printable, shortened, signed
from moeprof.reports.memory import words
from moeprof.reports.memory.document import (
    CompiledInfo,
    LeverInfo,
    MemoryDocument,
    MemoryRow,
    StageInfo,
)
from moeprof.reports.memory.phases import Component
from moeprof.units import format_bytes, format_percent

WIDTH = 80
_LEAST_WIDTH = 40
_STYLES = {"fits": "green", "borderline": "yellow", "oom": "red", "unknown": "magenta"}
_GAP = 2
_FEW_LEVERS = 6
# A figure and its unit stay on one line.
_UNIT = re.compile(r" (%|GiB|B|×)(?=\W|$)")
_SIZE = 10
_BAR = 10
_CONFIDENCE = 7
_MOST_STAGES = 12
_SMALL = 0.01
"""Rows below this share of the total are put together; the JSON and the page have each."""
_MOST_PARTS = 10


def drawn(document: MemoryDocument, width: int = WIDTH) -> Text:
    """The whole projection in lines of at most `width` columns, from 40 to 80."""
    width = max(_LEAST_WIDTH, min(width, WIDTH))
    row = words.shown(document)
    blocks = [
        _verdict(document, width),
        _heading(document, width),
        _said(document, width),
        _grid(document, width),
        _ends(document, width),
        account(row, width),
        stage_table(row, width),
        phase_table(row, width),
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
    found, marks = {row["verdict"] for row in rows}, {words.mark(row)[1:] for row in rows}
    parts = []
    if "fits" in found:
        parts.append("✓ fits")
    if "borderline" in found:
        parts.append("~ borderline")
    if any(mark.startswith(("+", ">")) for mark in marks):
        parts.append("✗+3.2 out of memory by 3.2 GiB")
    if "out" in marks:
        parts.append("✗out too much beside the pool")
    if "host" in marks:
        parts.append("✗host too much in a host's memory")
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


def account(row: MemoryRow, width: int) -> Text:
    """The components by pool: name, size, share of the total as a bar, confidence, formula."""
    lines: list[Text] = []
    for pool in words.POOLS:
        found = [part for part in row["components"] if part["pool"] == pool]
        if found:
            lines += [*_pool_title(row, pool, width), *_rows(found, row["total_bytes"], width)]
    return Text("\n").join(lines)


def _peak_name(row: MemoryRow) -> str:
    """The fullest of the moments that were compared."""
    return max(row["peaks"], key=lambda p: float("inf") if p["bytes"] is None else p["bytes"])[
        "name"
    ]


def _bar(share: float, width: int) -> str:
    """A bar of `share` of `width` columns, in eighths of a column."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


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


def phase_table(row: MemoryRow, width: int) -> Text:
    """Every phase of the run: bytes in the pool, of a host, a verdict on each."""
    if len(row["phases"]) < 2:
        return Text("")
    devices = row["host"]["devices"] or 1
    hosted = f"of a host ({devices} devices)" if devices > 1 else "of its host"
    lines = [Text(f"{'Phases':<12}{'in the pool':>12}  {'':14}{hosted:>24}", style="bold")]
    for phase in row["phases"]:
        args, temp, pool = phase["args_bytes"], phase["temp_bytes"], phase["pool_bytes"]
        inside, verdict = "?", words.MARKS[phase["verdict"]]
        if args is not None and temp is not None:
            over, inside = args + temp - pool, format_bytes(args + temp)
            beside = over <= 0 and phase["verdict"] == "oom"
            side = "over" if over > 0 else "left"
            verdict += " beside the pool" if beside else f" {words.gib(abs(over))} GiB {side}"
        host = "" if phase["host_bytes"] == 0 else words.size(phase["host_bytes"])
        told = Text(f" {phase['name']:<11}{inside:>12}  ")
        told.append(f"{verdict:<18}", _STYLES[phase["verdict"]])
        told.append(f"{host:>20} {words.MARKS.get(phase['host_verdict'] or '', '')}".rstrip())
        told.rstrip()
        lines.append(told)
        for part in phase["components"]:
            if part["bytes"] is None and phase["name"] != "step":
                text = f"{phase['name']}: {part['name']}, {part['formula']}"
                lines += wrapped(f" - {text}", width, indent="   ", style="dim")
    return Text("\n").join(lines)


def _kept(stages: Sequence[StageInfo], worst: int) -> set[int]:
    """The first and last few stages and the worst, where there are many."""
    every = range(len(stages))
    if len(stages) <= _MOST_STAGES:
        return set(every)
    few = _MOST_STAGES // 3
    return {n for n in every if n < few or n >= len(stages) - few or stages[n]["stage"] == worst}


def _pool_title(row: MemoryRow, pool: str, width: int) -> list[Text]:
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
        lines.append(Text(shortened(f" fullest in: {_peak_name(row)}", width), style="bold"))
    if pool == "temp" and row["temp_range_bytes"] and row["library_peaks"]:
        most = max(row["library_peaks"], key=lambda peak: peak["bytes"] or 0)
        if (most["bytes"] or 0) > (row["temp_bytes"] or 0):
            text = f" where libraries compute products {words.size(most['bytes'])}: {most['name']}"
            lines += wrapped(text, width, indent="   ")
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
    bar = _bar(size / whole, _BAR) if size and whole else ""
    name, *below = textwrap.wrap(printable(part["name"]), room) or [""]
    told = Text(f" {name:<{room}} {words.size(size):>{_SIZE}}  ")
    told.append(f"{bar:<{_BAR}}", "cyan").append(f" {part['confidence']}")
    formula = textwrap.wrap(
        printable(part["formula"]), width - 3, break_on_hyphens=False, break_long_words=False
    )
    return [told, *[Text(f" {line}") for line in below],
            *[Text(f"   {line}", style="dim") for line in formula]]  # fmt: skip


def compiled_text(row: MemoryRow, info: CompiledInfo, width: int) -> Text:
    """Closed form and compiler side by side, and the largest buffers at the compiler's peak."""
    lines = [Text(shortened(words.compiler(row), width), style="bold")]
    lines.append(Text(f"{'':10}{'closed form':>12}{'compiled':>12}{'difference':>12}"))
    for pool in ("args", "temp"):
        ours, theirs = row[f"{pool}_bytes"], info[f"{pool}_bytes"]  # type: ignore[literal-required]
        lines.append(_beside(pool, ours, theirs))
    lines.append(_beside("together", _together(row), _together(info)))
    lines += wrapped(words.compiled_range(row), width)
    for part in info["parts"][:_MOST_PARTS]:
        name = words.part_name(part)
        size = format_bytes(part["bytes"])
        lines.append(Text(f" {shortened(printable(name), width - 14):<{width - 14}} {size:>10}"))
    left = info["parts"][_MOST_PARTS:]
    if left:
        rest = format_bytes(sum(part["bytes"] for part in left))
        lines.append(Text(f" {f'{len(left)} more':<{width - 14}} {rest:>10}", style="dim"))
    for note in info["notes"]:
        lines += map(Text, textwrap.wrap(f" - {printable(note)}", width, subsequent_indent="   "))
    return Text("\n").join(lines)


def _together(sizes: MemoryRow | CompiledInfo) -> int | None:
    args, temp = sizes["args_bytes"], sizes["temp_bytes"]
    return None if args is None or temp is None else args + temp


def _beside(name: str, ours: int | None, theirs: int | None) -> Text:
    change = ""
    if ours and theirs is not None:
        change = signed((ours - theirs) / theirs, format_percent) if theirs else ""
    return Text(f" {name:<9}{words.size(ours):>12}{words.size(theirs):>12}{change:>12}".rstrip())
