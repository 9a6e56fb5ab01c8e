"""Question: what does a request for a search answer, by runs of the user's and by the compiler too?

The closed form ranks thousands of plans; a file of corrections calibrates it by what runs of the
user's took; the compiler then lays out the best few as it would on the devices themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moeprof.errors import CompileError, SelectionError
from moeprof.projector.batches import largest_of
from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.framework import FRAMEWORKS, framework, verdict_of
from moeprof.projector.memory import project
from moeprof.projector.request import as_usage
from moeprof.projector.request.plan import Request
from moeprof.projector.request.search import SearchRequest, WantedSearch, wanted_search
from moeprof.projector.search import ORDERS, Found, Order, search
from moeprof.projector.setting import Setting
from moeprof.projector.step_time import TimedRun, nearest
from moeprof.projector.what_if import Effect, what_if
from moeprof.reports.search.document import Answered, CheckInfo, SearchDocument, document_of
from moeprof.tell import Tell, unheard

if TYPE_CHECKING:
    from moeprof.projector.compiled.result import CompiledPlan


@dataclass(frozen=True)
class Extras:
    """What is asked beside the space.

    ``rank_by`` None: time where it is measured or calibrated, else fit. ``correction`` is a file of
    `moeprof memory --calibrate`. ``compile_top`` of the best are compiled, 0: none. ``arguments``
    are those of the command, to be made again.
    """

    top: int = 10
    what_if: bool = False
    rank_by: str | None = None
    correction: Path | None = None
    compile_top: int = 0
    arguments: tuple[str, ...] = ()


def answered(
    request: SearchRequest,
    extras: Extras = Extras(),
    counting: Callable[[str], Tell] = lambda _phase: unheard,
) -> SearchDocument:
    """The document of a search; ``counting`` is given each phase, and hears how much is done.

    Raises:
        SelectionError: something is missing or cannot be; wrong usage.
        SpecError: the model's configuration or the file of corrections cannot be read.
        CompileError: the compiler is asked for and not installed.
    """
    order = _order(extras.rank_by)
    if extras.compile_top:
        request = compilable(request, "compile-top")
    asked, runs, projecting = _corrected(wanted_search(request), extras.correction)
    if extras.compile_top:
        _check_compiler(asked)
    tell = counting("projecting plans, by strategy and remat")
    with as_usage():
        result = search(asked.space, extras.top, asked.tuning, runs=runs, order=order, tell=tell)
    checks = _checks(result.found[: extras.compile_top], counting)
    found = Answered(
        asked, result, order is not None, None, runs, projecting, checks, extras.arguments,
        None if extras.correction is None else str(extras.correction),
    )  # fmt: skip
    document = document_of(found)
    if not extras.what_if:
        return document
    effects: tuple[Effect, ...] = ()
    if result.found:
        best = result.found[(document["plans"][0]["closed_form_rank"] or 1) - 1].setting
        with as_usage():
            effects = what_if(best, asked.tuning, runs, projecting)
    return document_of(replace(found, effects=effects))


def _order(name: str | None) -> Order | None:
    for order in ORDERS:
        if name == order:
            return order
    if name is None:
        return None
    raise SelectionError(f"rank-by: expected one of {', '.join(ORDERS)}, found {name!r}.")


# Runs of the user's.

Projecting = Callable[[Setting], MemoryBreakdown]


def _corrected(
    asked: WantedSearch, file: Path | None
) -> tuple[WantedSearch, tuple[TimedRun, ...], Projecting]:
    """The search with what a file of corrections says of its framework and device."""
    if file is None:
        return asked, (), project
    from moeprof.projector.correction import corrected, read_corrections

    known = read_corrections(file)
    base = asked.space.base
    here = [
        one for one in known if (one.framework, one.hardware) == (base.framework, base.hardware.key)
    ]
    runs = tuple(one.time for one in here if one.time is not None)
    where = f"{base.program.title} on {base.hardware.name}"
    said = [
        f"Arena of {one.strategy}, remat {one.remat}: × {one.factor:.3f}, as {one.evidence.run} "
        "took."
        for one in here
    ]
    if nearest(base, runs) is None:
        said.append(f"{file} has no step time of {where}, so times are not calibrated.")
    arena = {(one.strategy, one.remat): one.factor for one in here}
    space = replace(asked.space, arena=arena)
    asked = replace(asked, space=space, said=(*asked.said, *said))
    return asked, runs, lambda setting: corrected(project(setting), known)


# The compiler.


_Asked = TypeVar("_Asked", Request, SearchRequest)


def compilable(request: _Asked, option: str) -> _Asked:
    """The request with a framework whose step can be compiled, as ``option`` asks for.

    Raises:
        SelectionError: another framework is asked for.
    """
    able = [name for name in FRAMEWORKS if framework(name).compiler]
    if request.framework is None:
        return replace(request, framework=able[0])
    with as_usage():
        program = framework(request.framework)
    if not program.compiler:
        raise SelectionError(
            f"{option}: expected a framework whose step can be compiled of a plan alone "
            f"({', '.join(able)}), found {program.name} ({program.title}). Leave it out, or plan "
            "the program itself with `moeprof memory --script`, MaxText's with --maxtext --compile."
        )
    return request


def largest_compiled(setting: Setting) -> tuple[int, CompiledPlan, tuple[tuple[int, str], ...]]:
    """The largest pdbs whose step fits by the compiler, begun at the setting's own.

    Returns:
        It, its plan, and (pdbs, verdict) of all that were compiled; see `largest_of`.
    """

    def compiled(pdbs: int) -> CompiledPlan:
        return compiled_step(replace(setting, pdbs=pdbs))

    return largest_of(setting.pdbs or 1, compiled, lambda plan: checked(plan, setting)["verdict"])


def _check_compiler(asked: WantedSearch) -> None:
    """Whether the compiler for the devices is there, before thousands of plans are projected."""
    from moeprof.projector.compiled import load_target, require_compiler

    require_compiler(load_target(asked.space.base.hardware, asked.space.devices))


def _checks(best: Sequence[Found], counting: Callable[[str], Tell]) -> dict[int, CheckInfo]:
    """What the compiler lays out for each, by its place."""
    checks = {}
    for place, found in enumerate(best):
        counting(f"compiling plan {place + 1} of {len(best)}")
        with as_usage():
            checks[place] = check(found.setting)
    return checks


def compiled_step(setting: Setting) -> CompiledPlan:
    """What the compiler lays out for the step of a setting, by its framework."""
    module, _, name = setting.program.compiler.partition(":")
    compile_step: Callable[[Setting], CompiledPlan] = getattr(import_module(module), name)
    return compile_step(setting)


def check(setting: Setting) -> CheckInfo:
    """What the compiler lays out for one plan; ``unknown``, with why, where it cannot."""
    try:
        return checked(compiled_step(setting), setting)
    except CompileError as error:
        return {
            "verdict": "unknown",
            "peak_range_bytes": None,
            "args_bytes": None,
            "is_range_known": False,
            "compiler": "",
            "compile_s": 0.0,
            "notes": [str(error)],
        }


def checked(plan: CompiledPlan, setting: Setting) -> CheckInfo:
    """A compiled plan against the pool of its setting, and what lies beside against what is left.

    The arena differs by kernels that a run's autotuner chooses: the least and the most of both.
    """
    pool = int(setting.hardware.hbm_bytes * setting.mem_fraction)
    args, beside = plan.memory.argument_bytes, plan.temp_range_bytes
    verdict, ends = "unknown", None
    if args is not None and beside is not None:
        least, most = (args + size for size in beside)
        verdict = verdict_of((least, most), pool, is_known=plan.is_range_known)
        ends = [least, most]
    outside = plan.outside_bytes
    if outside is not None and outside > setting.hardware.hbm_bytes - pool:
        verdict = "oom"
    return {
        "verdict": verdict,
        "peak_range_bytes": ends,
        "args_bytes": args,
        "is_range_known": plan.is_range_known,
        "compiler": plan.compiler,
        "compile_s": plan.compile_s,
        "notes": list(plan.notes),
    }
