"""Question: what does another compilation hold in memory, as one strict JSON document and as text?

`moeprof memory diff --json` prints the document, the text is drawn from it alone. Its schema only
grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypedDict

import pandas as pd
from rich.text import Text

from moeprof.analyzers.classify.layers import layer_number
from moeprof.analyzers.comparison.compare import HOST, memory_changes
from moeprof.analyzers.heap.at_peak import main_module, memory_difference, untold_on
from moeprof.analyzers.heap.contents import DENSE_FALLBACK
from moeprof.answers.document import Value, plain
from moeprof.answers.values import printable, shortened, signed
from moeprof.reports.parts.terminal import wrapped
from moeprof.tables.trace import Trace
from moeprof.units import format_bytes, format_percent

SCHEMA = "moeprof.memory_difference/1"
WIDTH = 80
_MOST_ROWS = 12
_INDENT = 13
_MOST_SHARE = 10.0
"""Above it a share of next to nothing: the sizes say more."""

Row = dict[str, Value]


class SideInfo(TypedDict):
    """One of the two programs."""

    path: str
    program: str
    notes: list[str]


class DifferenceDocument(TypedDict):
    """``totals`` by part (peak, argument, temp, output, alias, host), ``rows`` by buffers."""

    schema: str
    base: SideInfo
    new: SideInfo
    totals: list[Row]
    rows: list[Row]
    notes: list[str]


def build_difference(base: Trace, new: Trace) -> DifferenceDocument:
    """The difference of the two programs that the traces are about."""
    rows = _plain(memory_difference(base, new))
    names = {**_op_names(base), **_op_names(new)}
    for row in rows:
        row["op_name"] = names.get(str(row["op"]), "")
        row["layer"] = layer_number(str(row["op_name"]))
    notes = [] if rows or _are_both_known(base, new) else [_unknown(base, new)]
    notes += [text for text in (untold_on(base, new),) if text]
    return {
        "schema": SCHEMA,
        "base": _side(base),
        "new": _side(new),
        "totals": _plain(memory_changes(base, new)),
        "rows": rows,
        "notes": notes,
    }


def difference_json(document: DifferenceDocument) -> str:
    """The document as strict JSON."""
    return json.dumps(document, allow_nan=False)


def difference_text(document: DifferenceDocument) -> Text:
    """The document at 80 columns."""
    is_whole = not document["notes"]
    lines = [*_totals(document), Text(""), *_rows(document["rows"], is_whole=is_whole)]
    notes = [*document["notes"], *document["base"]["notes"], *document["new"]["notes"]]
    lines += [Text(line) for note in dict.fromkeys(notes) for line in _wrapped(f"note: {note}", 0)]
    return Text("\n").join(lines)


def _side(trace: Trace) -> SideInfo:
    known = trace.modules[trace.modules["module"].eq(main_module(trace))]
    name = str(known["name"].iloc[0]) if len(known) else ""
    return {"path": trace.meta.path, "program": name, "notes": list(trace.meta.notes)}


def _plain(table: pd.DataFrame) -> list[Row]:
    records = table.to_dict("records")
    return [{str(name): plain(value) for name, value in row.items()} for row in records]


def _op_names(trace: Trace) -> dict[str, str]:
    mine = trace.hlo_ops[trace.hlo_ops["module"].eq(main_module(trace))]
    return dict(zip(mine["op"].tolist(), mine["op_name"].tolist(), strict=True))


def _are_both_known(*traces: Trace) -> bool:
    return all(not _buffers(trace).empty for trace in traces)


def _unknown(*traces: Trace) -> str:
    which = ", ".join(trace.meta.path for trace in traces if _buffers(trace).empty)
    return (
        f"no account of the buffers in {which}, so only totals can be compared: compile with "
        "XLA_FLAGS=--xla_dump_to=FOLDER and give FOLDER"
    )


def _buffers(trace: Trace) -> pd.DataFrame:
    return trace.buffers[trace.buffers["module"].eq(main_module(trace))]


def _totals(document: DifferenceDocument) -> list[Text]:
    lines = []
    for row in document["totals"]:
        if row["change_bytes"] is None:
            continue
        if row["part"] == HOST and not (row["base_bytes"] or row["new_bytes"]):
            continue  # nothing lies there, as in most programs
        change = float(row["change_bytes"] or 0)
        sizes = " → ".join(format_bytes(float(row[f"{k}_bytes"] or 0)) for k in ("base", "new"))
        share = row["change_share"]
        is_telling = isinstance(share, float) and 0 < abs(share) < _MOST_SHARE
        part = f", {signed(float(share or 0), format_percent)}" if is_telling else ""
        changed = f"{signed(change, format_bytes)}{part}" if change else "the same"
        text = f"{row['part']:<9} {sizes}  ({changed})"
        lines.append(Text(text, style="bold" if row["part"] == "peak" else ""))
    return lines or [Text("the memory of the two programs is not known", style="bold")]


def _rows(rows: list[Row], *, is_whole: bool) -> list[Text]:
    if not rows and not is_whole:
        return [Text("no difference in what is known of the buffers")]
    if not rows:
        return [Text("no buffer of the one is missing in the other")]
    lines = [Text("At the peak, what is new first", style="bold")]
    ordered = [row for row in rows if row["change_bytes"]]
    for row in ordered[:_MOST_ROWS]:
        change = signed(float(row["change_bytes"] or 0), format_bytes)
        is_bad = row["content"] == DENSE_FALLBACK
        first, *rest = _wrapped(_what(row), _INDENT)
        lines.append(Text(f" {change:>10}  {first.strip()}", style="bold" if is_bad else ""))
        lines += [Text(line) for line in rest]
        lines += [Text(" " * _INDENT + part) for part in _made_by(row)]
    if len(ordered) > _MOST_ROWS:
        lines.append(Text(f"… and {len(ordered) - _MOST_ROWS} more kinds: --json has all"))
    return lines


def _what(row: Mapping[str, Value]) -> str:
    counts = f"{row['base_buffers']} → {row['new_buffers']} × {row['shape'] or 'all'}"
    layer = f", layer {row['layer']}" if row["layer"] is not None else ""
    is_said = row["content"] == DENSE_FALLBACK  # it is the experts' product, whatever is around it
    part = f", {row['component']}" if row["component"] and not is_said else ""
    what = f"{row['content']}{part}"
    return printable(f"{what}{layer}: {counts}")


def _made_by(row: Mapping[str, Value]) -> list[str]:
    name = str(row["op_name"]) or str(row["op"])
    lines = [shortened(printable(name), WIDTH - _INDENT)] if name else []
    return lines + ([printable(str(row["source"]))] if row["source"] else [])


def _wrapped(text: str, indent: int) -> list[str]:
    spaces = " " * indent
    return wrapped(text, WIDTH, first=spaces, indent=spaces)
