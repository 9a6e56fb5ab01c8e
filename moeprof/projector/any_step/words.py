"""Question: how is a planned step, or a script of several, said in words, with units?"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from moeprof.interpreter import installed_as
from moeprof.projector.setting import GPU_FRACTION
from moeprof.units import format_bytes, format_count, format_flops, format_ns

if TYPE_CHECKING:
    from moeprof.projector.any_step.result import StepPlan
    from moeprof.projector.any_step.script import ScriptPlan, ScriptProgram
    from moeprof.specs.hardware import HardwareSpec

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


# Scripts.

_OF_CPUS = "--xla_force_host_platform_device_count"
_NAME_LETTERS = 20
_OUTSIDE = "outside jax.jit"
_MARKS = {"fits": "✓", "borderline": "~", "oom": "✗"}


def described_script(plan: ScriptPlan, width: int = 80) -> str:
    """The plan of a script as it is printed: whether it fits, its programs, the largest of them."""
    parts = [
        *map(list, (_script_head(plan), _programs(plan), _others(plan.largest), _script_run(plan))),
        [f" - {note}" for note in plan.notes],
        [f"{plan.largest.name}, called at {plan.largest.called_at}, the largest:"],
        [installed_as(str(plan.largest.plan)).replace(f"{Path.cwd()}{os.sep}", "")],
    ]
    lines = [line for part in parts for line in [*"\n".join(part).splitlines(), ""] if part]
    return "\n".join(_folded(line, width) for line in lines).rstrip()


def _folded(line: str, width: int) -> str:
    """A line that is too long goes on below, further in."""
    inset = " " * (len(line) - len(line.lstrip()) + 2)
    return "\n".join(
        textwrap.wrap(
            line, width, subsequent_indent=inset, break_long_words=False, break_on_hyphens=False
        )
    )


def _script_head(plan: ScriptPlan) -> Iterator[str]:
    left, largest = format_bytes(abs(plan.left_bytes)), plan.largest
    how = f"{left} left of" if plan.left_bytes >= 0 else f"{left} too much for"
    yield f"{plan.verdict}: {how} the pool of {format_bytes(plan.pool_bytes)}"
    if plan.outside_bytes > plan.hardware.hbm_bytes - plan.pool_bytes:
        yield f"beside the pool {format_bytes(plan.outside_bytes)}: more than there is"
    told = [_certainty(plan), plan.unsettled]
    yield f"certainty: {', '.join(each for each in told if each)}"
    if plan.unplanned:
        yield f"no plan of {', '.join(plan.unplanned)}, which may need more"
    if plan.half_known:
        yield f"one of two plans of {', '.join(plan.half_known)}, which may need more"
    by = f"what is {_OUTSIDE}" if plan.is_eager_largest else largest.name
    yield f"{plan.script} on {plan.devices} × {plan.hardware.name}, decided by {by}"


def _certainty(plan: ScriptPlan) -> str:
    """How near the limit the largest program is, with whichever kernels a run chooses."""
    if plan.is_eager_largest:
        is_open = any(each.is_split_otherwise for each in plan.programs)
        size = format_bytes(plan.eager_bytes)
        known = f"{size}, if results are split as taken" if is_open else f"at least {size}"
        return f"a sum of arrays, {known}"
    least, most = map(format_bytes, plan.largest.range_bytes)
    verdict = plan.verdict_of(plan.largest)
    if not plan.largest.is_range_known:
        return f"XLA's own plan, {most} by one choice of kernels for products"
    if least == most:
        near = "within" if verdict == "borderline" else "more than"
        return f"XLA's own plan, {most}, {near} 5 % from the limit"
    said = {"fits": "the most fits", "oom": "the least is too much", "borderline": "may not fit"}
    by = "by which kernels a run chooses for products"
    return f"XLA's own plan, {least} to {most}, {by}: {said[verdict]}"


def _programs(plan: ScriptPlan) -> Iterator[str]:
    heads = ("calls", "arguments", "results", "temp", "others", "needs")
    yield f" {'program':<{_NAME_LETTERS}}" + _cells(heads)
    for each in plan.programs:
        name = f" {_short_name(each.name):<{_NAME_LETTERS}}"
        if each.plan is None:
            yield f"{name}{each.calls:>6}  {each.reason}"
            continue
        own = each.plan.outputs_bytes - each.plan.aliased_bytes
        most = each.plan.temporaries_bytes + each.plan.peak_range[1] - each.plan.peak_bytes
        sizes = (each.plan.arguments_bytes, own, most, each.others_bytes)
        cells = [str(each.calls), *map(format_bytes, sizes), format_bytes(each.needed_bytes)]
        yield name + _cells(cells) + f"  {_MARKS[plan.verdict_of(each)]}"
    if plan.is_eager_largest:
        cells = ["", "", "", "", "", format_bytes(plan.eager_bytes)]
        yield f" {_OUTSIDE:<{_NAME_LETTERS}}{_cells(cells)}  {_MARKS[plan.eager_verdict]}"
        yield f"   without what ops need meanwhile, once {plan.eager_line} has run"
    yield " ✓ fits  ~ may not fit  ✗ out of memory; bytes are of one device, at most"
    if plan.light:
        yield f" not the largest, not compiled: {', '.join(plan.light)}"


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>{5 if at == 0 else 10}}" for at, cell in enumerate(cells))


def _short_name(name: str) -> str:
    return name if len(name) < _NAME_LETTERS else f"{name[: _NAME_LETTERS - 2]}…"


def _others(program: ScriptProgram) -> Iterator[str]:
    if program.others_bytes:
        yield f"Alive beside the arguments of {program.name}, by the line that made it"
        for line, size in program.others:
            yield f"  {format_bytes(size):>11}  {line}"


def _script_run(plan: ScriptPlan) -> Iterator[str]:
    yield f"Run here for {plan.ran_s:.1f} s, until {plan.ended}"
    if plan.error:
        yield f"  it ended with: {plan.error}"
    if plan.reads:
        yield "Values that it read on the host, which are 0 here"
    for how, line, times in plan.reads[:_MOST_ROWS]:
        yield f"  {line}  {how}" + (f" ×{times}" if times > 1 else "")
    if len(plan.reads) > _MOST_ROWS:
        yield f"  and {len(plan.reads) - _MOST_ROWS} more lines"


def nothing_text(
    script: Path | str, devices: int, spec: HardwareSpec, answer: Mapping[str, Any]
) -> str:
    """Why there is no program: the script's own error, or that it called no jitted function."""
    where = f"memory --script {script}"
    if answer["error"]:
        return (
            f"{where}: {answer['error']}, on {devices} absent × {spec.name} seen as one process, "
            f"before it called a jitted function.{_read_before(answer)}"
        )
    return (
        f"{where}: expected a call of a jitted function, found none until {answer['ended']}, after "
        f"{answer['ran_s']:.1f} s. A step has to be in jax.jit; --seconds gives it more time."
    )


def _read_before(answer: Mapping[str, Any]) -> str:
    """The values that were read before, as they are 0 and may be why."""
    reads = ", ".join(f"{line} ({how})" for how, line, _ in answer["reads"][:3])
    return f" Values it read are 0 here: {reads}." if reads else ""


def notes_of(
    answer: Mapping[str, Any],
    programs: Sequence[ScriptProgram],
    devices: int,
    mem_fraction: float | None,
) -> Iterator[str]:
    """What was assumed of a script, left out, and not known."""
    if mem_fraction is None:
        yield f"--mem-fraction not given, so taken: {GPU_FRACTION:g}; JAX's own is 0.75"
    over = {each.plan.devices for each in programs if each.plan}
    if over == {1} and devices > 1:
        yield f"every program runs on 1 of the {devices} devices: no array of one is over a mesh"
    if devices > 1:
        yield f"the script is one process that has all {devices} devices"
    for name in answer["left_out"]:
        yield f"left out: {name}"
    own = {*answer["flags"].split()} - {*os.environ.get("XLA_FLAGS", "").split()}
    if not all(flag.startswith(_OF_CPUS) for flag in own):
        yield "XLA_FLAGS that the script sets itself are not used: set them for this command"
    for each in programs:
        if each.plan and not each.is_range_known:
            yield from (f"{each.name}: {note}" for note in each.plan.notes[-1:])
        if each.plan and each.is_split_otherwise:
            yield (
                f"results of {each.name} take {format_bytes(each.plan.outputs_bytes)} of a device "
                f"by XLA, {format_bytes(each.taken_bytes)} were taken: give it out_shardings"
            )
    yield "what runs outside jax.jit is not compiled; arrays that it leaves are counted"
