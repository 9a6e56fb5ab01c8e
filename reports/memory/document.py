"""Question: what is the JSON document of a memory projection?

Text and page are drawn from it alone. A size that cannot be told is null, and the component's
formula says what is missing; bytes of the components sum to the totals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

from moeprof.answers.values import encodable
from moeprof.projector.answer import Answer
from moeprof.projector.batches import BOUND
from moeprof.projector.breakdown import MemoryBreakdown, Peak, StageBreakdown, total
from moeprof.projector.levers import Lever
from moeprof.projector.setting import OTHER_PHASES, Setting
from moeprof.reports.memory.phases import (
    Component,
    ErrorInfo,
    PhaseInfo,
    component,
    error_info,
    error_of,
    phases_of,
)
from moeprof.specs.parameters import active_parameter_count, parameter_count
from moeprof.specs.plan import ALL_AXES

if TYPE_CHECKING:  # brings pandas
    from moeprof.projector.compiled.result import CompiledPlan

SCHEMA = "moeprof.memory/1"
_DEGREES = (*ALL_AXES, "expert_tensor", "virtual")
Scalar = str | int | float | bool | None
Inputs = dict[str, Scalar | Mapping[str, Scalar]]


class PeakInfo(TypedDict):
    """A moment at which XLA's arena may be fullest."""

    name: str
    bytes: int | None


class StageInfo(TypedDict):
    """One pipeline stage at its own peak."""

    stage: int
    peak: str
    args_bytes: int | None
    temp_bytes: int | None
    outside_bytes: int | None
    total_bytes: int | None


class LeverInfo(TypedDict):
    """One change alone: the room that it gains in the pool, the verdict then, what it costs."""

    name: str
    saved_bytes: int
    verdict: str
    price: str


class CompiledPart(TypedDict):
    """Buffers of one content and part of the step, at the peak of the compiled program."""

    content: str
    component: str
    bytes: int


class CompiledInfo(TypedDict):
    """What XLA's compiler plans for the same step; None: the backend does not report it.

    ``temp_bytes`` is of its default kernels; a run's lies in ``temp_range_bytes``, by the kernels
    that it chooses for products, whose most is known where ``is_temp_range_known``.
    """

    args_bytes: int | None
    temp_bytes: int | None
    temp_range_bytes: list[int] | None
    is_temp_range_known: bool
    compiler: str
    compile_s: float
    peak_op: str
    parts: list[CompiledPart]
    notes: list[str]
    tried: NotRequired[list[TriedInfo]]


class TriedInfo(TypedDict):
    """A pdbs that was compiled on the way to the largest that fits, and the verdict."""

    pdbs: int
    verdict: str


class MemoryRow(TypedDict):
    """One strategy at one batch per device. ``over_bytes`` is above what there is, else below 0.

    Verdict and ``over_bytes`` are of ``largest_phase``, other sizes of the step. ``host`` has its
    devices of the run and its memory, null where that was not given. ``temp_range_bytes``: the
    arena with XLA's own products (``temp_bytes``) and with libraries', null where the account has
    one end; ``library_error`` is measured of the second, whose moments are ``library_peaks``.
    ``inside_range_bytes``: arguments and arena of the step at both ends of the errors.
    """

    strategy: str
    pdbs: int | None
    verdict: str
    breaks_first: str | None
    args_bytes: int | None
    temp_bytes: int | None
    pool_bytes: int
    outside_bytes: int | None
    outside_limit_bytes: int
    device_bytes: int
    total_bytes: int | None
    over_bytes: int | None
    error: ErrorInfo
    temp_range_bytes: list[int] | None
    library_error: ErrorInfo | None
    inside_range_bytes: list[int] | None
    fits_up_to_overload: float | None
    mem_fraction_range: list[float] | None
    worst_stage: int
    components: list[Component]
    peaks: list[PeakInfo]
    library_peaks: list[PeakInfo]
    stages: list[StageInfo]
    levers: list[LeverInfo] | None
    notes: list[str]
    largest_phase: str
    phases: list[PhaseInfo]
    host: dict[str, int | None]
    compiled: NotRequired[CompiledInfo]


class Cell(TypedDict):
    """Which row's account is shown in full."""

    strategy: str
    pdbs: int | None


class Break(TypedDict):
    """The first batch that is out of memory, and what breaks there."""

    pdbs: int
    what: str | None


class MemoryDocument(TypedDict):
    """The whole of `moeprof.memory/1`.

    ``inputs`` hold what was projected, defaults included (``world`` is the framework by its former
    name); ``said`` are sentences on what was taken where nothing was given. ``largest_pdbs`` is the
    largest batch per device that is not out of memory, ``largest_pdbs_with_room`` that is not
    borderline; null where it cannot be told. ``first_to_break``: at one more than the largest; null
    where no limit was found. ``arguments`` are those of the command, ``searched_by`` those of a
    search for other plans of the same run.
    """

    schema: str
    inputs: Inputs
    said: list[str]
    rows: list[MemoryRow]
    largest_pdbs: dict[str, int | None]
    largest_pdbs_with_room: dict[str, int | None]
    largest_pdbs_tried: int
    first_to_break: dict[str, Break | None]
    detail: Cell
    arguments: list[str]
    searched_by: list[str]


def document_of(
    answer: Answer, arguments: Sequence[str] = (), compiled: CompiledInfo | None = None
) -> MemoryDocument:
    """The document of an answer.

    Args:
        answer: what a request was answered.
        arguments: of the command.
        compiled: what the compiler plans for the cell that is shown.
    """
    wanted, lines = answer.wanted, answer.lines
    model = wanted.setting.model
    rows = [
        row_of(
            cell.breakdown, cell.fits_up_to_overload, cell.levers, cell.name == answer.shown.name
        )
        for line in lines
        for cell in line.cells
    ]
    strategy, pdbs = answer.shown.name
    for row in rows:
        if compiled is not None and (row["strategy"], row["pdbs"]) == (strategy, pdbs):
            row["compiled"] = compiled
    totals = (parameter_count(model), active_parameter_count(model))
    return {
        "schema": SCHEMA,
        "inputs": inputs_of(wanted.setting, totals, wanted.model_key),
        "said": list(wanted.said),
        "rows": rows,
        "largest_pdbs": {line.strategy.name: line.reach.largest for line in lines},
        "largest_pdbs_with_room": {line.strategy.name: line.reach.with_room for line in lines},
        "largest_pdbs_tried": BOUND,
        "first_to_break": {line.strategy.name: _break(line.first_to_break) for line in lines},
        "detail": {"strategy": strategy, "pdbs": pdbs},
        "arguments": list(arguments),
        "searched_by": list(wanted.searched_by),
    }


def _break(found: MemoryBreakdown | None) -> Break | None:
    if found is None or found.setting.pdbs is None:
        return None
    return {"pdbs": found.setting.pdbs, "what": found.breaks_first}


def row_of(
    breakdown: MemoryBreakdown,
    overload: float | None = None,
    levers: Sequence[Lever] | None = None,
    is_shown: bool = True,
) -> MemoryRow:
    """One strategy at one batch. ``levers`` None: they were not asked for."""
    bounds, within = breakdown.mem_fraction_range, breakdown.inside_range_bytes
    worst, own, other = breakdown.worst, breakdown.temp_bytes, breakdown.library_temp_bytes
    has_ends = bool(worst.libraries)
    return {
        "strategy": breakdown.setting.strategy.name,
        "pdbs": breakdown.setting.pdbs,
        "verdict": breakdown.verdict,
        "breaks_first": breakdown.breaks_first,
        "args_bytes": breakdown.args_bytes,
        "temp_bytes": breakdown.temp_bytes,
        "pool_bytes": breakdown.pool_bytes,
        "outside_bytes": breakdown.outside_bytes,
        "outside_limit_bytes": breakdown.device_bytes - breakdown.pool_bytes,
        "device_bytes": breakdown.device_bytes,
        "total_bytes": breakdown.total_bytes,
        "over_bytes": breakdown.over_bytes,
        "error": error_of(breakdown),
        "temp_range_bytes": [own, other] if has_ends and own and other else None,
        "library_error": error_info(breakdown.library_band) if has_ends else None,
        "inside_range_bytes": list(within) if within else None,
        "fits_up_to_overload": overload,
        "mem_fraction_range": list(bounds) if bounds else None,
        "worst_stage": worst.stage,
        "components": [component(row) for row in breakdown.rows],
        "peaks": _peaks(worst.peaks),
        "library_peaks": _peaks(worst.libraries),
        "stages": [_stage(stage) for stage in breakdown.stages],
        "levers": None if levers is None else [_lever(lever) for lever in levers],
        "notes": list(breakdown.notes),
        "largest_phase": breakdown.largest.name,
        "phases": phases_of(breakdown, is_shown),
        "host": {
            "devices": min(devices_of(breakdown.setting), breakdown.setting.hardware.host_devices),
            "memory_bytes": breakdown.setting.host_memory_bytes,
        },
    }


def _peaks(peaks: Sequence[Peak]) -> list[PeakInfo]:
    return [{"name": peak.name, "bytes": _whole(peak.size_bytes)} for peak in peaks]


def to_json(document: MemoryDocument) -> str:
    """Strict JSON: no NaN, no Infinity."""
    return encodable(json.dumps(document, ensure_ascii=False, allow_nan=False))


def inputs_of(setting: Setting, totals: tuple[int, int], model: str) -> Inputs:
    """What all rows share. ``totals``: parameters of the model, and those active per token."""
    plan, hardware = setting.plan, setting.hardware
    precision = setting.precision
    return {
        "model": {
            "key": encodable(model),
            "name": encodable(setting.model.name or model),
            "parameters": totals[0],
            "active_parameters": totals[1],
        },
        "hardware": {
            "key": hardware.key,
            "name": hardware.name,
            "device_bytes": hardware.hbm_bytes,
            "source": hardware.source,
        },
        "devices": devices_of(setting),
        "plan": {axis: getattr(plan, axis) for axis in _DEGREES},
        "remat": plan.remat.text,
        "sequence": setting.sequence,
        "microbatches": setting.microbatches,
        "schedule": setting.schedule,
        "framework": setting.framework,
        "build": setting.build,
        "world": setting.framework,
        "optimizer": setting.optimizer,
        "precision": {name: getattr(precision, name) for name in precision.__dataclass_fields__},
        "mem_fraction": setting.mem_fraction,
        "overload": setting.overload,
        "ragged_buffer_factor": setting.ragged_buffer_factor,
        "vocab_tiling": setting.vocab_tiling,
        "attention": setting.attention,
        "offload": ",".join(sorted(setting.offload)) or None,
        "deepep_sms": setting.deepep_sms,
        "recomputed_layers": setting.recomputed_layers,
        "layers_per_stage": None
        if setting.layers_per_stage is None
        else ",".join(map(str, setting.layers_per_stage)),
        "fused_loss": setting.has_fused_loss,
        "sequence_parallel": setting.megatron.has_sequence_parallel,
        "phases": ",".join(name for name in OTHER_PHASES if name in setting.phases),
        "eval_pdbs": setting.eval_pdbs,
    }


def devices_of(setting: Setting) -> int:
    """Devices of the run."""
    return setting.plan.degree(setting.program.axes)


def _lever(lever: Lever) -> LeverInfo:
    return {
        "name": lever.change,
        "saved_bytes": lever.saved_bytes,
        "verdict": lever.verdict,
        "price": lever.price,
    }


def _stage(stage: StageBreakdown) -> StageInfo:
    return {
        "stage": stage.stage,
        "peak": stage.peak.name,
        "args_bytes": _whole(total(stage.args)),
        "temp_bytes": _whole(stage.peak.size_bytes),
        "outside_bytes": _whole(total(stage.outside)),
        "total_bytes": _whole(total(stage.rows)),
    }


def _whole(size: object) -> int | None:
    return None if size is None else int(size)  # type: ignore[call-overload]


def compiled_info(plan: CompiledPlan, tried: Sequence[tuple[int, str]] = ()) -> CompiledInfo:
    """The plan's part of the document; ``tried``: (pdbs, verdict) of all that were compiled.

    A result that reuses no argument lies beside the arena, so it is counted with it.
    """
    parts = plan.by("content", "component").to_dict("records") if len(plan.buffers) else []
    total, args = plan.total_bytes, plan.memory.argument_bytes
    within = plan.temp_range_bytes
    sizes = ", ".join(f"{pdbs} {verdict}" for pdbs, verdict in tried)
    found: CompiledInfo = {
        "args_bytes": args,
        "temp_bytes": None if total is None or args is None else total - args,
        "temp_range_bytes": list(within) if within else None,
        "is_temp_range_known": plan.is_range_known,
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
        "notes": [*([f"pdbs, compiled one by one: {sizes}"] if tried else []), *plan.notes],
    }
    if tried:
        found["tried"] = [{"pdbs": pdbs, "verdict": verdict} for pdbs, verdict in tried]
    return found
