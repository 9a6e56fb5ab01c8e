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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprof.errors import CompileError, SelectionError
from moeprof.interpreter import module_command, module_file
from moeprof.projector.any_step import PROGRAMS, SECONDS
from moeprof.projector.any_step.ask import plan_lowered
from moeprof.projector.any_step.result import StepPlan
from moeprof.projector.any_step.words import described_script, notes_of, nothing_text
from moeprof.projector.compiled import load_target, require_compiler
from moeprof.projector.compiled.child import PRINTED, SHOWN_LETTERS
from moeprof.projector.compiled.plan import child_environment
from moeprof.projector.framework import verdict_of
from moeprof.projector.setting import GPU_FRACTION
from moeprof.specs.hardware import HardwareSpec, load_hardware

if TYPE_CHECKING:
    from moeprof.projector.any_step.exported import Lowered

_CHILD = "moeprof.projector.any_step.running"
_LOWERING_S = 600.0
_ROUND = 0.01
"""Share of what a program needs from which on a difference of its results is said."""
_WORST_LAST = ("fits", "borderline", "oom")


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

    @property
    def is_split_otherwise(self) -> bool:
        """Whether XLA splits its results otherwise than later programs were given them."""
        apart = abs(self.plan.outputs_bytes - self.taken_bytes) if self.plan else 0
        return apart > _ROUND * self.needed_bytes

    @property
    def is_range_known(self) -> bool:
        """Whether that is so with whichever kernels; of no plan nothing is said."""
        return self.plan is None or self.plan.is_range_known


@dataclass(frozen=True, eq=False)
class ScriptPlan:
    """What a script takes of one of ``devices`` devices: its largest program decides.

    ``ended`` says why it was run no further, ``error`` what it raised itself, ``unsettled`` why its
    step may not be among ``programs``. ``reads`` are the lines that read a value on the host, where
    it is 0 here: (how, line, times). ``eager_bytes`` are the most that arrays took of a device
    outside `jax.jit`, without what ops need meanwhile; since ``eager_line``.
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
    unsettled: str
    eager_bytes: int
    eager_line: str
    ran_s: float
    notes: tuple[str, ...]

    @property
    def largest(self) -> ScriptProgram:
        """The program that decides: which needs most of those whose bytes fit least."""
        return max(self.programs, key=lambda each: self._weight(each.range_bytes))

    def _weight(self, range_bytes: tuple[int, int]) -> tuple[int, int]:
        found = verdict_of(range_bytes, self.pool_bytes)
        return _WORST_LAST.index(found), range_bytes[1]

    @property
    def is_eager_largest(self) -> bool:
        """Whether what is there outside `jax.jit` decides, and no program."""
        eager = self._weight((self.eager_bytes, self.eager_bytes))
        return eager > self._weight(self.largest.range_bytes)

    @property
    def pool_bytes(self) -> int:
        """What XLA may take of a device."""
        return int(self.hardware.hbm_bytes * self.mem_fraction)

    @property
    def left_bytes(self) -> int:
        """What the largest program leaves of the pool; negative: what it lacks."""
        most = self.eager_bytes if self.is_eager_largest else self.largest.needed_bytes
        return self.pool_bytes - most

    @property
    def outside_bytes(self) -> int:
        """Estimate of what lies beside the pool."""
        return max(each.plan.outside_bytes for each in self.programs if each.plan)

    @property
    def verdict(self) -> str:
        """``fits``, ``borderline`` or ``oom``, as of `StepPlan`: the worst of any program."""
        if self.outside_bytes > self.hardware.hbm_bytes - self.pool_bytes:
            return "oom"
        found = [self.verdict_of(each) for each in self.programs if each.plan]
        return max([*found, self.eager_verdict], key=_WORST_LAST.index)

    def verdict_of(self, program: ScriptProgram) -> str:
        """The same of one program, of the pool alone."""
        known = program.is_range_known
        return verdict_of(program.range_bytes, self.pool_bytes, is_known=known)

    @property
    def eager_verdict(self) -> str:
        """The same of what is there outside `jax.jit`."""
        return verdict_of((self.eager_bytes, self.eager_bytes), self.pool_bytes)

    @property
    def unplanned(self) -> list[str]:
        """Names of the programs without a plan."""
        return [each.name for each in self.programs if each.plan is None]

    @property
    def half_known(self) -> list[str]:
        """Names of the programs of which the most that they need is not known."""
        return [each.name for each in self.programs if not each.is_range_known]

    @property
    def is_sure(self) -> bool:
        """Whether its step was seen, all programs have their plans, and none is near the limit."""
        is_off = self.verdict == "fits" or any(each.is_split_otherwise for each in self.programs)
        is_bound = self.is_eager_largest and is_off
        is_open = self.unplanned or self.half_known or self.unsettled or self.error or is_bound
        return not is_open and self.verdict != "borderline"

    def __str__(self) -> str:
        """The plan in words, with units."""
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
            "outside_jit": {
                "needed_bytes": self.eager_bytes,
                "line": self.eager_line,
                "verdict": self.eager_verdict,
                "is_largest": self.is_eager_largest,
            },
            "programs": [self._row(each) for each in self.programs],
            "light": list(self.light),
            "reads": [{"how": how, "line": line, "times": n} for how, line, n in self.reads],
            "ended": self.ended,
            "error": self.error,
            "unsettled": self.unsettled,
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
    script: Path | str,
    arguments: Sequence[str] = (),
    *,
    is_module: bool = False,
    environment: Mapping[str, str | None] | None = None,
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
        is_module: it is the name of a module instead, as after ``python -m``.
        environment: variables that it has beside the caller's; None: it does not have it.
        hardware: a key of ``moeprof hardware``: h100_sxm, h200_sxm or b200.
        devices: how many; it sees all of them as one process.
        mem_fraction: share of the device that XLA may take; 0.93 where it is left out.
        programs: after so many, once it loops, it is run no further, nor after ``seconds``.
        timeout_s: of the compiler, for each program.

    Raises:
        SelectionError: no such hardware or file, or the script's mesh has fewer devices.
        CompileError: the script or the compiler fails, or no jitted function was called.
    """
    file = module_file(str(script)) if is_module else Path(script)
    if file is None or not file.is_file():
        kind = "a module of this Python" if is_module else "a file of Python"
        raise SelectionError(f"memory --script: expected {kind}, found no {script}.")
    spec = load_hardware(hardware)
    require_compiler(load_target(spec, devices))
    fraction = GPU_FRACTION if mem_fraction is None else mem_fraction
    request = {
        "script": str(file.resolve()),
        "module": str(script) if is_module else "",
        "arguments": list(arguments),
        "hardware": spec.key,
        "devices": devices,
        "pool_bytes": int(spec.hbm_bytes * fraction),
        "programs": programs,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="moeprof-script-") as text:
        folder = Path(text)
        answer = run_script(request, folder, environment)
        rows = answer["programs"]
        if not rows:
            raise CompileError(nothing_text(script, devices, spec, answer))
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
        unsettled=answer["unsettled"],
        eager_bytes=answer["outside_jit"]["size_bytes"],
        eager_line=answer["outside_jit"]["line"],
        ran_s=answer["ran_s"],
        notes=tuple(notes_of(answer, found, devices, mem_fraction)),
    )


def run_script(
    request: Mapping[str, object], folder: Path, more: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """What the process of the script answers; ``more`` are variables of it."""
    variables = {**child_environment(), "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}
    script, seconds = Path(str(request["script"])).name, float(str(request["seconds"]))
    now = f"running {script} on {request['devices']} absent devices, for at most {seconds:g} s"
    print(f"moeprof: {now}", file=sys.stderr, flush=True)
    (folder / "request.json").write_text(json.dumps(request), "utf-8")
    said = folder / PRINTED
    with said.open("wb") as out:
        child = subprocess.Popen(
            module_command(_CHILD, str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={name: value for name, value in variables.items() if value is not None},
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


def _lowered(folder: Path, row: Mapping[str, Any]) -> Lowered | None:
    if row["error"]:
        return None
    return pickle.loads((folder / row["file"]).read_bytes())  # type: ignore[no-any-return]


def _check_meshes(script: Path | str, devices: int, lowered: Sequence[Lowered]) -> None:
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
