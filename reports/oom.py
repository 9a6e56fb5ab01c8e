"""Question: how does an explained out-of-memory failure read on a terminal of 80 columns?

Why there was no room, first; what was asked and what there is; what fills the memory; the one
change that buys most; then what the text does not tell.
"""

from __future__ import annotations

import textwrap

from rich.text import Text

from moeprof.analyzers.heap.contents import DENSE_FALLBACK
from moeprof.answers.values import printable, shortened
from moeprof.projector.oom.document import MessageInfo, OomDocument, Row
from moeprof.reports.parts.terminal import wrapped
from moeprof.units import format_bytes, format_percent

WIDTH = 80
_MOST_GROUPS = 8
_MOST_CHANGES = 3
_MOST_MESSAGES = 3
_INDENT = 12
_LAYERS = {"moe_layer": "MoE", "dense_layer": "dense", "layer": "", "head": "head"}
_SIZES = (
    ("argument_bytes", "arguments (weights, optimizer state, batch)"),
    ("new_output_bytes", "results that reuse none of them"),
    ("temp_bytes", "arena of temporaries, one allocation"),
    ("reserved_bytes", "reserved by the runtime"),
)


def oom_text(document: OomDocument) -> Text:
    """The whole document; ``.plain`` is the text without colour."""
    shown = document["messages"][:_MOST_MESSAGES]
    blocks = [_several(document["messages"])] if len(document["messages"]) > 1 else []
    blocks += [_message(message) for message in shown]
    if len(document["messages"]) > len(shown):
        more = len(document["messages"]) - len(shown)
        blocks.append([Text(f"… and {more} more failures: --json has all")])
    notes = [line for note in document["notes"] for line in _wrapped(f"note: {note}", 0)]
    if notes:
        blocks.append(notes)
    return Text("\n\n").join([Text("\n").join(lines) for lines in blocks])


def _several(messages: list[MessageInfo]) -> list[Text]:
    """What there is, one line each; what ended a step comes first, and is the cause."""
    lines = [Text(f"{len(messages)} failures; the first is the cause:", style="bold")]
    for place, message in enumerate(messages, start=1):
        where = [message["memory"], *_whose(message)]
        told = f"{place}. {message['verdict'].replace('_', ' ')}: {', '.join(where)}"
        lines += _wrapped(told, 0)
    return lines


def _whose(message: MessageInfo) -> list[str]:
    who = [f"rank {', '.join(message['ranks'])}"] if message["ranks"] else []
    return who + ([f"device {', '.join(message['devices'])}"] if message["devices"] else [])


def _message(message: MessageInfo) -> list[Text]:
    return [
        *_wrapped(_first_upper(message["sentence"]) + ".", 0, "bold"),
        *_said_by(message),
        *_amounts(message),
        *_groups(message),
        *_changes(message),
        *[line for what in message["not_told"] for line in _wrapped(f"not told: {what}", 0)],
    ]


def _said_by(message: MessageInfo) -> list[Text]:
    said = message["said_by"]
    if not said["line"]:
        return []
    times = f", told {said['repeats']} times" if int(said["repeats"] or 1) > 1 else ""
    where = f"line {said['line']}, {said['who']}{times}"
    return _wrapped("; ".join([where, message["memory"], *_whose(message)]), 0, "dim")


def _amounts(message: MessageInfo) -> list[Text]:
    """Request, pool and program, those that are told."""
    request, pool, program = message["request"], message["pool"], message["program"]
    rows: list[tuple[Row | int | float | str | bool | None, str]] = []
    what = "asked for"
    if request["is_arena"]:
        what += ": XLA's arena of temporaries, so arguments come on top"
    elif request["is_arena"] is False:
        what += ": one array or result, not the program's arena"
    rows.append((request["size_bytes"], what))
    is_pool = message["verdict"] != "on_chip_memory"
    rows.append((pool["limit_bytes"], "the pool may take" if is_pool else "there is of it"))
    if pool["taken_bytes"] != pool["limit_bytes"]:
        rows.append((pool["taken_bytes"], "taken by it so far"))
    rows.append((pool["in_use_bytes"], "in use at that moment"))
    rows.append((pool["free_bytes"], "free"))
    if pool["largest_free_bytes"] is not None:
        rows.append((pool["largest_free_bytes"], "largest free piece"))
    rows += [(program[name], text) for name, text in _SIZES if program[name]]
    if program["after_remat_bytes"]:
        budget = format_bytes(float(program["budget_bytes"] or 0))
        rows.append(
            (program["after_remat_bytes"], f"after XLA recomputed what it could; budget {budget}")
        )
    lines = [
        Text(f"{_size(value):>10}  {text}")
        for value, text in rows
        if isinstance(value, int) and not isinstance(value, bool)
    ]
    return [Text(""), *lines] if lines else []


def _groups(message: MessageInfo) -> list[Text]:
    groups = message["groups"]
    if not groups:
        return []
    rest = message["not_listed_bytes"]
    listed = f"{_size(message['listed_bytes'])} listed"
    listed += f", {_size(rest)} of temporaries not listed" if rest else ""
    lines = [Text(""), Text(f"At the program's peak ({listed})", style="bold")]
    for group in groups[:_MOST_GROUPS]:
        share = int(group["size_bytes"] or 0) / max(message["listed_bytes"], 1)
        count = [_count(group)] if group["shape"] else []
        head = f"{_size(group['size_bytes']):>10}  {format_percent(share):>7}  "
        first, *more = textwrap.wrap(printable(": ".join([_what(group), *count])), WIDTH - 21) or [
            ""
        ]
        is_bad = group["content"] == DENSE_FALLBACK
        lines.append(Text(head + first, style="bold" if is_bad else ""))
        lines += [Text(" " * 21 + line) for line in more]
        if group["scope"]:
            lines.append(Text(" " * 21 + shortened(printable(str(group["scope"])), WIDTH - 21)))
    if len(groups) > _MOST_GROUPS:
        lines.append(Text(f"… and {len(groups) - _MOST_GROUPS} more groups: --json has all"))
    return lines


def _count(group: Row) -> str:
    """``3 × bf16[8,4]``, or of buffers that differ ``3 buffers, largest bf16[8,4]``."""
    join = " × " if group["are_alike"] else " buffers, largest "
    return f"{group['buffers']}{join}{group['shape']}"


def _what(group: Row) -> str:
    """``layer 7 MoE, dispatch: receive buffers``, as far as it is told."""
    kind = _LAYERS.get(str(group["layer_kind"]), "")
    layer = f"layer {group['layer']} {kind}".strip() if group["layer"] is not None else kind
    is_said = group["content"] == DENSE_FALLBACK
    part = str(group["component"]) if group["component"] not in ("", "other") else ""
    parts = [layer, "" if is_said else part, str(group["content"])]
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _changes(message: MessageInfo) -> list[Text]:
    found = message["changes"]
    if not found:
        return [Text(""), Text("No change can be named from this text alone.")]
    lines = [Text(""), Text("What to change, what buys most first", style="bold")]
    for change in found[:_MOST_CHANGES]:
        saves = change["saves_bytes"]
        bound = "≤ " if change["is_upper_bound"] else ""
        amount = f"{bound}{_size(saves)}" if isinstance(saves, int) else ""
        enough = {True: " (enough)", False: " (not enough alone)"}.get(bool(change["is_enough"]))
        enough = "" if change["is_enough"] is None else enough
        lines.append(Text(f"{amount:>12}  {change['name']}{enough}"))
        lines += [Text(line) for line in _plain_wrapped(str(change["text"]), _INDENT + 2)]
    return lines


def _size(value: object) -> str:
    return format_bytes(float(value)) if isinstance(value, int) else ""


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain_wrapped(text: str, indent: int) -> list[str]:
    spaces = " " * indent
    return wrapped(text, WIDTH, first=spaces, indent=spaces)


def _wrapped(text: str, indent: int, style: str = "") -> list[Text]:
    return [Text(line, style=style) for line in _plain_wrapped(printable(text), indent)]
