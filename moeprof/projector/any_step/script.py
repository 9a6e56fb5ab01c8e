"""Question: what do the programs that a script runs take of each of N devices that are not there?

The script is left as it is. It runs in a process of its own (`running`), on this machine, where
its arrays are shapes; each program that may be the largest is then compiled as `ask.plan` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprof.errors import CompileError, SelectionError
from moeprof.interpreter import module_command
from moeprof.projector.any_step.ask import plan_lowered
from moeprof.projector.any_step.result import StepPlan, verdict_of
from moeprof.projector.compiled import load_target, require_compiler
from moeprof.projector.compiled.child import SHOWN_LETTERS
from moeprof.projector.compiled.plan import child_environment
from moeprof.projector.setting import GPU_FRACTION
from moeprof.specs.hardware import HardwareSpec, load_hardware
from moeprof.units import format_bytes

if TYPE_CHECKING:
    from moeprof.projector.any_step.exported import Lowered

PROGRAMS = 8
SECONDS = 60.0
_CHILD = "moeprof.projector.any_step.running"
_LOWERING_S = 600.0
_OF_CPUS = "--xla_force_host_platform_device_count"
_ROUND = 0.01
"""Share of what a program needs from which on a difference of its results is said."""


@dataclass(frozen=True, eq=False)
class ScriptProgram:
    """A program that a script runs.

    ``others_bytes`` are arrays of the script that are alive on a device while it runs and are no
    arguments of it; ``others`` the lines that made most of them. ``taken_bytes`` are its results as
    later programs were given them. ``plan`` is None where ``reason`` says why.
    """

    name: str
    source: str
    called_at: str
    calls: int
    plan: StepPlan | None
    others_bytes: int
    others: tuple[tuple[str, int], ...]
    taken_bytes: int
    reason: str = ""

    @property
    def needed_bytes(self) -> int:
        """The most of its own peak, and the others; 0 where it has no plan."""
        return self.range_bytes[1]

    @property
    def range_bytes(self) -> tuple[int, int]:
        """The least and the most that it needs, whatever kernels a run chooses."""
        least, most = (0, 0) if self.plan is None else self.plan.peak_range
        others = 0 if self.plan is None else self.others_bytes
        return least + others, most + others


@dataclass(frozen=True, eq=False)
class ScriptPlan:
    """What a script takes of one of ``devices`` devices: its largest program decides.

    ``ended`` says why it was run no further, ``error`` what it raised itself. ``reads`` are the
    lines that read a value on the host, where it is 0 here: (how, line, times).
    """

    script: str
    hardware: HardwareSpec
    devices: int
    mem_fraction: float
    programs: tuple[ScriptProgram, ...]
    light: tuple[str, ...]
    reads: tuple[tuple[str, str, int], ...]
    ended: str
    error: str
    ran_s: float
    notes: tuple[str, ...]

    @property
    def largest(self) -> ScriptProgram:
        """The program that needs most."""
        return max(self.programs, key=lambda each: each.needed_bytes)

    @property
    def pool_bytes(self) -> int:
        """What XLA may take of a device."""
        return int(self.hardware.hbm_bytes * self.mem_fraction)

    @property
    def left_bytes(self) -> int:
        """What the largest program leaves of the pool; negative: what it lacks."""
        return self.pool_bytes - self.largest.needed_bytes

    @property
    def outside_bytes(self) -> int:
        """Estimate of what lies beside the pool."""
        return max(each.plan.outside_bytes for each in self.programs if each.plan)

    @property
    def verdict(self) -> str:
        """``fits``, ``borderline`` or ``oom``, as of `StepPlan`."""
        if self.outside_bytes > self.hardware.hbm_bytes - self.pool_bytes:
            return "oom"
        return self.verdict_of(self.largest)

    def verdict_of(self, program: ScriptProgram) -> str:
        """The same of one program, of the pool alone."""
        return verdict_of(program.range_bytes, self.pool_bytes)

    @property
    def unplanned(self) -> list[str]:
        """Names of the programs without a plan."""
        return [each.name for each in self.programs if each.plan is None]

    @property
    def is_sure(self) -> bool:
        """Whether all programs have a plan, and the largest is not near the limit."""
        return not self.unplanned and self.verdict != "borderline"

    def __str__(self) -> str:
        """The plan in words, with units."""
        from moeprof.projector.any_step.words import described_script

        return described_script(self)

    def document(self) -> dict[str, Any]:
        """It as JSON can hold it, schema ``moeprof.memory_script/1``."""
        return {
            "schema": "moeprof.memory_script/1",
            "script": self.script,
            "hardware": self.hardware.key,
            "devices": self.devices,
            "verdict": self.verdict,
            "is_sure": self.is_sure,
            "left_bytes": self.left_bytes,
            "pool_bytes": self.pool_bytes,
            "outside_bytes": self.outside_bytes,
            "mem_fraction": self.mem_fraction,
            "largest": self.programs.index(self.largest),
            "programs": [self._row(each) for each in self.programs],
            "light": list(self.light),
            "reads": [{"how": how, "line": line, "times": n} for how, line, n in self.reads],
            "ended": self.ended,
            "error": self.error,
            "ran_s": self.ran_s,
            "notes": list(self.notes),
        }

    def _row(self, program: ScriptProgram) -> dict[str, Any]:
        return {
            "name": program.name,
            "source": program.source,
            "called_at": program.called_at,
            "calls": program.calls,
            "verdict": self.verdict_of(program) if program.plan else "unknown",
            "needed_bytes": program.needed_bytes,
            "range_bytes": list(program.range_bytes),
            "others_bytes": program.others_bytes,
            "others": [{"line": line, "size_bytes": size} for line, size in program.others],
            "reason": program.reason,
            "plan": program.plan.document() if program.plan else None,
        }


def plan_script(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    hardware: str = "h100_sxm",
    devices: int,
    mem_fraction: float | None = None,
    programs: int = PROGRAMS,
    seconds: float = SECONDS,
    timeout_s: float = 900.0,
) -> ScriptPlan:
    """Run a script on devices that are not there, and compile the programs that it runs first.

    Args:
        script: a file of Python; it is not changed, and nothing is written beside it.
        arguments: what it is given.
        hardware: a key of ``moeprof hardware``: h100_sxm, h200_sxm or b200.
        devices: how many; it sees all of them as one process.
        mem_fraction: share of the device that XLA may take; 0.93 where it is left out.
        programs: after so many programs, once it loops, it is run no further,
        seconds: nor after so long.
        timeout_s: seconds that the compiler may take of each program.

    Raises:
        SelectionError: no such hardware or file, or the script's mesh has fewer devices.
        CompileError: the script or the compiler fails, or no jitted function was called.
    """
    if not script.is_file():
        raise SelectionError(f"memory --script: expected a file of Python, found no {script}.")
    spec = load_hardware(hardware)
    require_compiler(load_target(spec, devices))
    fraction = GPU_FRACTION if mem_fraction is None else mem_fraction
    request = {
        "script": str(script.resolve()),
        "arguments": list(arguments),
        "hardware": spec.key,
        "devices": devices,
        "pool_bytes": int(spec.hbm_bytes * fraction),
        "programs": programs,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="moeprof-script-") as text:
        folder = Path(text)
        answer = run_script(request, folder)
        rows = answer["programs"]
        if not rows:
            raise CompileError(_nothing(script, devices, spec, answer))
        lowered = [_lowered(folder, row) for row in rows]
    _check_meshes(script, devices, [each for each in lowered if each is not None])

    def planned(one: Lowered) -> StepPlan:
        target = load_target(spec, prod(one.axes.values()))
        return plan_lowered(one, target, mem_fraction=fraction, timeout_s=timeout_s)

    found = tuple(_program(row, one, planned) for row, one in zip(rows, lowered, strict=True))
    if not any(each.plan for each in found):
        raise CompileError(f"memory --script {script}: {found[0].reason}")
    return ScriptPlan(
        script=str(script),
        hardware=spec,
        devices=devices,
        mem_fraction=fraction,
        programs=found,
        light=tuple(answer["light"]),
        reads=tuple((how, line, number) for how, line, number in answer["reads"]),
        ended=answer["ended"],
        error=answer["error"],
        ran_s=answer["ran_s"],
        notes=tuple(_notes(answer, found, devices, mem_fraction)),
    )


def run_script(request: Mapping[str, object], folder: Path) -> dict[str, Any]:
    """What the process of the script answers."""
    script, seconds = Path(str(request["script"])).name, float(str(request["seconds"]))
    print(
        f"moeprof: running {script} on {request['devices']} absent devices, for at most "
        f"{seconds:g} s",
        file=sys.stderr,
        flush=True,
    )
    (folder / "request.json").write_text(json.dumps(request), "utf-8")
    said = folder / "said.txt"
    with said.open("wb") as out:
        child = subprocess.Popen(
            module_command(_CHILD, str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**child_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        try:
            child.wait(seconds + _LOWERING_S)
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"memory --script {script}: not done after {seconds + _LOWERING_S:g} s and stopped."
            ) from None
        finally:
            _end(child)
    if not (folder / "answer.json").exists():
        lines = [line for line in said.read_text("utf-8", "replace").splitlines() if line.strip()]
        last = f": {lines[-1].strip()[:SHOWN_LETTERS]}" if lines else ""
        raise CompileError(
            f"memory --script {script}: its process ended with code {child.returncode}{last}"
        )
    return json.loads((folder / "answer.json").read_text("utf-8"))  # type: ignore[no-any-return]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Stop the script's process, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _nothing(script: Path, devices: int, spec: HardwareSpec, answer: Mapping[str, Any]) -> str:
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


def _lowered(folder: Path, row: Mapping[str, Any]) -> Lowered | None:
    if row["error"]:
        return None
    return pickle.loads((folder / row["file"]).read_bytes())  # type: ignore[no-any-return]


def _check_meshes(script: Path, devices: int, lowered: Sequence[Lowered]) -> None:
    """Check that the script uses all devices; programs of one device may be beside.

    Raises:
        SelectionError: it makes a mesh of fewer.
    """
    from moeprof.projector.any_step.mesh import mesh_text

    for one in lowered:
        size = prod(one.axes.values())
        if size not in (1, devices):
            raise SelectionError(
                f"memory --script {script}: expected programs over all {devices} devices, found "
                f"{one.name} over the mesh {mesh_text(one.axes)}, which is {size}. Give --devices "
                f"{size}, or the script what makes it use {devices}."
            )


def _program(
    row: Mapping[str, Any], lowered: Lowered | None, planned: Callable[[Lowered], StepPlan]
) -> ScriptProgram:
    plan, reason = None, str(row["error"])
    if lowered is not None:
        try:
            plan = planned(lowered)
        except CompileError as error:
            reason = str(error)
    return ScriptProgram(
        name=row["name"],
        source=row["source"],
        called_at=row["at"],
        calls=row["calls"],
        plan=plan,
        others_bytes=row["others_bytes"],
        others=tuple((line, size) for line, size in row["others"]),
        taken_bytes=row["results_bytes"],
        reason=reason,
    )


def _notes(
    answer: Mapping[str, Any],
    programs: Sequence[ScriptProgram],
    devices: int,
    mem_fraction: float | None,
) -> Iterator[str]:
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
        apart = abs(each.plan.outputs_bytes - each.taken_bytes) if each.plan else 0
        if each.plan and apart > _ROUND * each.needed_bytes:
            yield (
                f"results of {each.name} take {format_bytes(each.plan.outputs_bytes)} of a device "
                f"by XLA, {format_bytes(each.taken_bytes)} were taken: give it out_shardings"
            )
    yield "what runs outside jax.jit is not compiled; arrays that it leaves are counted"
