"""Question: how does the difference of two runs read on a terminal of 80 columns?

The verdict first, then what it is made of, then which ops to look at, then how far to trust it.
Changes within the noise are named, never led with.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from moeprof.analyzers.comparison.changes import COMPONENT, OP, TOTAL
from moeprof.analyzers.comparison.noise import BEYOND, WITHIN
from moeprof.reports import story
from moeprof.reports.change_reasons import reasons
from moeprof.reports.comparison import ComparisonDocument, GateInfo, Row, SideInfo
from moeprof.reports.document import Document
from moeprof.reports.names import printable, shortened
from moeprof.reports.values import signed
from moeprof.units import format_bytes, format_ns, format_percent

WIDTH = 80
_FEW_OPS = 6
_FEW_WITHIN = 3
WORTH_A_LINE = 0.001
"""Share of base's op time from which on a change is worth a line: of 500 ops 25 seem to be beyond a
95 % noise by chance, and what is less than this is no reason for a step to be slower."""
_CHANGE_WIDTH = 10
_NAME_WIDTH = 20
_INDENT = 7
_MOST_BUFFERS = 5


def comparison_text(document: ComparisonDocument) -> Text:
    """The whole comparison; ``.plain`` is the text without colour."""
    blocks = [
        _verdict(document),
        _step_parts(document),
        _components(document),
        _gates(document["gates"]),
        _ops(document),
        _buffers(document),
        _runs(document),
        _notes(document["notes"]),
    ]
    return Text("\n\n").join([Text("\n").join(lines) for lines in blocks if lines])


def _verdict(document: ComparisonDocument) -> list[Text]:
    step = next(iter(document["step"]["rows"]), None)
    lines = [Text(_sentence("step", step), style="bold")] if step else []
    if step is None:
        lines = _wrapped("step time is not known for both runs: see the notes", "", "bold")
    memory = next(iter(document["memory"]["rows"]), None)
    if memory and memory["change_bytes"] == 0:
        lines.append(Text(f"memory peak {format_bytes(_number(memory['base_bytes']))}, unchanged"))
    elif memory and memory["change_bytes"] is not None:
        sizes = _from_to(format_bytes, memory["base_bytes"], memory["new_bytes"])
        change = signed(_number(memory["change_bytes"]), format_bytes)
        lines.append(Text(f"memory peak {sizes}  ({change}, {_signed_share(memory)})"))
    else:
        lines.append(Text("memory peak is not known for both runs"))
    return lines


def _buffers(document: ComparisonDocument) -> list[Text]:
    """What lies in memory at the peak of one run and not of the other, the most new first."""
    rows = [row for row in document["buffers"]["rows"] if row["change_bytes"]]
    rows.sort(key=lambda row: -abs(_number(row["change_bytes"])))
    if not rows:
        return []
    lines = [Text("In memory at the peak", style="bold")]
    for row in rows[:_MOST_BUFFERS]:
        change = signed(_number(row["change_bytes"]), format_bytes)
        counts = f"{row['base_buffers']} → {row['new_buffers']} × {row['shape'] or 'all'}"
        what = f"{row['content']}, {row['component']}" if row["component"] else str(row["content"])
        first, *rest = textwrap.wrap(f"{printable(what)}: {printable(counts)}", WIDTH - 13)
        lines.append(Text(f" {change:>10}  {first}"))
        lines += [Text(f"{'':13}{line}") for line in rest]
    if len(rows) > _MOST_BUFFERS:
        lines.append(Text(f"… and {len(rows) - _MOST_BUFFERS} more kinds: --json has all"))
    return lines


def _sentence(name: str, row: Row) -> str:
    """``step 412.3 → 371.9 ms  (−9.8 %, noise ±0.4 %: beyond noise)``."""
    times = _from_to(format_ns, row["base_ns"], row["new_ns"])
    return f"{name} {times}  ({_signed_share(row)}, {_noise(row)})"


def _noise(row: Row) -> str:
    noise, base = row["noise_ns"], row["base_ns"]
    if not isinstance(noise, float) or not isinstance(base, float) or not base:
        return "noise not known"
    word = "beyond it" if row["verdict"] == BEYOND else "within it"
    return f"noise ±{format_percent(noise / base)}: {word}"


def _step_parts(document: ComparisonDocument) -> list[Text]:
    rows = document["step"]["rows"][1:]
    if not rows:
        return []
    ordered = sorted(rows, key=lambda row: (-abs(_number(row["change_ns"])), str(row["part"])))
    lines = [Text("Where the step's change is (adds up to it)", style="bold")]
    return lines + [_line(row, str(row["part"]), _between(row)) for row in ordered]


def _between(row: Row) -> str:
    times = _from_to(format_ns, row["base_ns"], row["new_ns"])
    return f"{times}, {row['verdict']}" if row["verdict"] != BEYOND else times


def _components(document: ComparisonDocument) -> list[Text]:
    rows = document["rows"]["rows"]
    total = next((row for row in rows if row["level"] == TOTAL), None)
    if total is None:
        return []
    parts = [row for row in rows if row["level"] == COMPONENT]
    ops = [row for row in rows if row["level"] == OP]
    shown = [row for row in parts if row["verdict"] != WITHIN and _is_worth(row, total)]
    lines = _wrapped(_sentence("op time", total), "", "bold")
    if not parts:
        return lines + _wrapped("components are not compared: see the notes", "  ")
    dearest = max(shown, key=lambda row: _number(row["change_ns"]), default=None)
    for row in shown:
        told = reasons(row, ops)
        if row is dearest and row["verdict"] == BEYOND and _number(row["change_ns"]) > 0:
            told += "  ← look here"
        lines += _lines(row, str(row["component"]), told)
    if not shown:
        lines += _wrapped("no component changed by much and beyond noise", "  ")
    rest = [row for row in parts if row not in shown and row["change_ns"]]
    lines += _rest("within noise", [row for row in rest if row["verdict"] == WITHIN])
    return lines + _rest("small", [row for row in rest if row["verdict"] != WITHIN])


def _is_worth(row: Row, total: Row) -> bool:
    change = abs(_number(row["change_ns"]))
    return change > 0 and change >= WORTH_A_LINE * _number(total["base_ns"])


def _rest(name: str, rows: Sequence[Row]) -> list[Text]:
    """The largest of the changes that are no headline, and how many there are."""
    if not rows:
        return []
    named = ", ".join(
        f"{story.label(str(row['component']))} {signed(_number(row['change_ns']), format_ns)}"
        for row in rows[:_FEW_WITHIN]
    )
    left = len(rows) - _FEW_WITHIN
    more = f", and {left} more" if left > 0 else ""
    return _wrapped(f"{name}: {named}{more}", "  ", "dim")


def _ops(document: ComparisonDocument) -> list[Text]:
    rows = document["rows"]["rows"]
    totals = [row for row in rows if row["level"] == TOTAL]
    rows = [
        row
        for row in rows
        if row["level"] == OP and row["verdict"] != WITHIN and _is_worth(row, totals[0])
    ]
    if not rows:
        return []
    lines = [Text("Look at", style="bold")]
    for row in rows[:_FEW_OPS]:
        phase = "" if row["phase"] == "other" else f" {row['phase']}"
        place = f"{story.label(str(row['component']))}{phase}: {printable(str(row['op']))}"
        facts = [str(row[name]) for name in ("scope", "shape") if row[name]]
        facts += [] if row["match"] == "same" else [str(row["match"])]
        details = shortened(printable(", ".join(facts)), 2 * (WIDTH - 16))
        lines += _hanging(_change(row), f"{place}; {details}" if details else place)
    if len(rows) > _FEW_OPS:
        lines.append(Text(f"… and {len(rows) - _FEW_OPS} more ops: --json has all", style="dim"))
    return lines


def _gates(gates: Sequence[GateInfo]) -> list[Text]:
    lines = [Text("Gates", style="bold")] if gates else []
    for gate in gates:
        write = format_bytes if gate["unit"] == "bytes" else format_ns
        told = gate["remark"]
        if gate["change"] is not None and gate["allowed"] is not None:
            told = f"{signed(gate['change'], write)}, allowed {signed(gate['allowed'], write)}"
            told += f" ({gate['remark']})" if gate["remark"] else ""
        style = {"passed": "green", "failed": "red"}.get(gate["verdict"], "yellow")
        text = f"{gate['verdict']} {printable(gate['expression'])}: {told}"
        lines += _wrapped(text, "  ", style)
    return lines


def _runs(document: ComparisonDocument) -> list[Text]:
    lines = []
    for name, side in (("base", document["base"]), ("new", document["new"])):
        path = shortened(printable(side["run"]["path"]), WIDTH - _INDENT)
        lines.append(Text.assemble((f"{name:<{_INDENT}}", "bold"), path))
        known = story.described_run(_document(side))
        lines += _wrapped(f"{known} · {story.described_trust(_document(side))}", " " * _INDENT)
        for check in story.troubles(_document(side)):
            text = f"{check['verdict']} {printable(check['check'])}: {printable(check['detail'])}"
            lines += _wrapped(text, " " * _INDENT, "yellow")
    return lines


def _document(side: SideInfo) -> Document:
    """A side as the document of a run that no question was put to."""
    return {"schema": "", **side, "analyses": {}, "drawings": {}}


_BASIS = "times are per device and step; memory is what the compiler plans for the step's program"


def _notes(notes: Sequence[str]) -> list[Text]:
    return [line for note in (_BASIS, *notes) for line in _hanging(" - ", printable(note))]


def _line(row: Row, name: str, text: str) -> Text:
    label = shortened(story.label(name), _NAME_WIDTH + 4)
    return Text(f"{_change(row)}{label:<{_NAME_WIDTH + 4}}{text}")


def _lines(row: Row, name: str, text: str) -> list[Text]:
    label = shortened(story.label(name), _NAME_WIDTH - 2)
    return _hanging(f"{_change(row)}{label:<{_NAME_WIDTH}}", text)


def _change(row: Row) -> str:
    return f"{signed(_number(row['change_ns']), format_ns):>{_CHANGE_WIDTH}}  "


def _hanging(head: str, text: str) -> list[Text]:
    """`text` behind `head`; further lines stand below its start."""
    lines = textwrap.wrap(text, WIDTH - len(head)) or [""]
    return [
        Text((head if place == 0 else " " * len(head)) + line) for place, line in enumerate(lines)
    ]


def _wrapped(text: str, indent: str, style: str = "") -> list[Text]:
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return [Text(line, style=style) for line in lines]


def _from_to(write: object, base: object, new: object) -> str:
    """``412.3 → 371.9 ms``: the unit once where both have the same."""
    assert callable(write)
    first, second = (str(write(_number(value))) for value in (base, new))
    figure, _, unit = first.partition(" ")
    return f"{figure if second.endswith(f' {unit}') else first} → {second}"


def _signed_share(row: Row) -> str:
    share = row["change_share"]
    return "nothing in base" if share is None else signed(_number(share), format_percent)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
