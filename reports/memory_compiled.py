"""Question: what does the compiler plan for the same step, beside the closed form?"""

from __future__ import annotations

import textwrap

from rich.text import Text

from moeprof.answers.names import printable, shortened
from moeprof.answers.values import signed
from moeprof.projector.compiled.result import CompiledPlan
from moeprof.reports import memory_words as words
from moeprof.reports.memory_document import CompiledInfo, MemoryRow
from moeprof.units import format_bytes, format_percent

_MOST_PARTS = 10


def compiled_info(plan: CompiledPlan) -> CompiledInfo:
    """The plan's part of the document.

    A result that reuses no argument lies beside the arena, so it is counted with it.
    """
    parts = plan.by("content", "component").to_dict("records") if len(plan.buffers) else []
    total, args = plan.total_bytes, plan.memory.argument_bytes
    return {
        "args_bytes": args,
        "temp_bytes": None if total is None or args is None else total - args,
        "compiler": plan.compiler,
        "compile_s": plan.compile_s,
        "peak_op": plan.peak_op,
        "parts": [
            {
                "content": str(part["content"]),
                "component": str(part["component"]),
                "bytes": int(part["bytes"]),
            }
            for part in parts
        ],
        "notes": list(plan.notes),
    }


def compiled_text(row: MemoryRow, info: CompiledInfo, width: int) -> Text:
    """Closed form and compiler side by side, and the largest buffers at the compiler's peak."""
    lines = [Text(shortened(words.compiler(row), width), style="bold")]
    lines.append(Text(f"{'':10}{'closed form':>12}{'compiled':>12}{'difference':>12}"))
    for pool in ("args", "temp"):
        ours, theirs = row[f"{pool}_bytes"], info[f"{pool}_bytes"]  # type: ignore[literal-required]
        lines.append(_line(pool, ours, theirs))
    lines.append(_line("together", _sum(row), _sum(info)))
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


def _sum(sizes: MemoryRow | CompiledInfo) -> int | None:
    args, temp = sizes["args_bytes"], sizes["temp_bytes"]
    return None if args is None or temp is None else args + temp


def _line(name: str, ours: int | None, theirs: int | None) -> Text:
    change = ""
    if ours and theirs is not None:
        change = signed((ours - theirs) / theirs, format_percent) if theirs else ""
    return Text(f" {name:<9}{words.size(ours):>12}{words.size(theirs):>12}{change:>12}".rstrip())
