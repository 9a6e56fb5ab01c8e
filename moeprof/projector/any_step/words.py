"""Question: how is a planned step said in words, with units?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from moeprof.units import format_bytes, format_count, format_flops, format_ns

if TYPE_CHECKING:
    from moeprof.projector.any_step.result import StepPlan

_MOST_ROWS = 8
_LETTERS = 40


def described(plan: StepPlan) -> str:
    """The plan as it is printed."""
    parts = [
        _head(plan),
        _memory(plan),
        _buffers(plan),
        _collectives(plan),
        _time(plan),
        _unknown(plan),
    ]
    notes = [f" - {note}" for note in plan.notes]
    return "\n\n".join("\n".join(part) for part in [*map(list, parts), notes] if part)


def peak_text(plan: StepPlan) -> str:
    """``36.6 to 51.9 GiB``, which the kernels that a run chooses decide; or one figure."""
    least, most = map(format_bytes, plan.peak_range)
    return least if least == most else f"{least} to {most}"


def _by_libraries(plan: StepPlan) -> str:
    size = plan.library_temporaries_bytes
    if size is None or format_bytes(size) == format_bytes(plan.temporaries_bytes):
        return ""
    return f"{format_bytes(size)} where libraries compute all products"


def verdict_text(plan: StepPlan) -> str:
    """``fits, 12.3 GiB left``."""
    size = format_bytes(abs(plan.left_bytes))
    left = f"{size} left" if plan.left_bytes >= 0 else f"{size} too much"
    return f"{plan.verdict}, {left} of the pool"


def _head(plan: StepPlan) -> Iterator[str]:
    mesh = " × ".join(f"{name} {size}" for name, size in plan.axes.items())
    yield f"{plan.name} for {plan.devices} × {plan.hardware.name}, mesh {mesh}"
    yield f"by {plan.compiler}; figures are of one device and one step"


def _memory(plan: StepPlan) -> Iterator[str]:
    yield f"Memory {peak_text(plan)}: {verdict_text(plan)}"
    share = f"{plan.mem_fraction:g} × {format_bytes(plan.hardware.hbm_bytes)}"
    own = plan.outputs_bytes - plan.aliased_bytes
    yield _row("pool", plan.pool_bytes, share)
    yield _row("arguments", plan.arguments_bytes, "")
    reused = f"and {format_bytes(plan.aliased_bytes)} in place of arguments"
    yield _row("results", own, reused if plan.aliased_bytes else "")
    yield _row("temporaries", plan.temporaries_bytes, _by_libraries(plan))
    if plan.constants_bytes:
        yield _row("constants", plan.constants_bytes, "of the program")
    for name, size in plan.outside.items():
        yield _row("beside the pool", size, f"{name}, an estimate")
    yield "By kind of tensor"
    for row in plan.memory.to_dict("records"):
        yield _row(str(row["content"]), int(row["bytes"]), _buffers_text(int(row["buffers"])))


def _buffers_text(count: int) -> str:
    return f"{count} buffer{'s' if count > 1 else ''}"


def _buffers(plan: StepPlan) -> Iterator[str]:
    yield "Largest buffers"
    keys = ["content", "shape", "op", "source", "size_bytes"]  # an op may write several alike
    alike = plan.largest_buffers.groupby(keys, sort=False, as_index=False).size()
    for row in alike.head(_MOST_ROWS).to_dict("records"):
        many = f"{row['size']} × " if row["size"] > 1 else ""
        where = f" at {row['source']}" if row["source"] else ""
        text = f"{many}{_short(str(row['shape']))} {row['op']}{where}".strip()
        yield _row(str(row["content"]), int(row["size_bytes"]) * int(row["size"]), text)


def _short(text: str) -> str:
    """A tuple of many arrays is as long as a page."""
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


def _collectives(plan: StepPlan) -> Iterator[str]:
    table = plan.collectives
    if table.empty:
        yield "Collectives: none"
        return
    total = plan.collective_bytes
    said = "not known in all" if total is None else f"{format_bytes(total)} cross its links"
    yield f"Collectives: {said}"
    keys = ["opcode", "axis", "group_size"]
    for (opcode, axis, size), rows in table.groupby(keys, sort=False):
        along = f"over {axis} ({size})" if axis else f"of {size} devices" if size else ""
        yield f"  {opcode} {along}".rstrip() + f"  ×{_runs(rows)}  {_message_text(rows)}"


def _runs(rows: pd.DataFrame) -> str:
    return "?" if (rows["runs"] < 0).any() else format_count(int(rows["runs"].sum()))


def _message_text(rows: pd.DataFrame) -> str:
    """Bytes of all messages; at most so many where their sizes are decided as the step runs."""
    runs = rows["runs"].clip(lower=1)
    if rows["bytes"].notna().all():
        return format_bytes(float((rows["bytes"] * runs).sum()))
    if rows["at_most_bytes"].notna().all():
        return f"at most {format_bytes(float((rows['at_most_bytes'] * runs).sum()))}"
    return "bytes not known"


def _time(plan: StepPlan) -> Iterator[str]:
    is_known = plan.flops is not None
    yield f"Work {'' if is_known else 'at least '}{format_flops(plan.known_flops)}"
    roof = plan.roofline
    parts = {"FLOPs": roof.compute_s, "memory": roof.memory_s, "links": roof.collectives_s}
    said = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in parts.items())
    yield f"  at least {_seconds(roof.at_least_s)} at the device's peaks ({said})"
    if roof.at_most_s is None:
        yield f"  at the rates that devices reach: not known, {roof.reason}"
    else:
        yield f"  {_seconds(roof.at_most_s)} at rates reached, nothing hidden: {roof.rates}"


def _unknown(plan: StepPlan) -> Iterator[str]:
    yield "Not known, and in no figure"
    for row in plan.unknowns.to_dict("records"):
        count = f" ×{row['count']}" if row["count"] >= 0 else ""
        yield f"  {row['what']}: {row['name']}{count}: {row['missing']}"


def _row(name: str, size: int, more: str) -> str:
    return f"  {name:<31} {format_bytes(size):>11}  {more}".rstrip()


def _seconds(seconds: float) -> str:
    return format_ns(seconds * 1e9)
