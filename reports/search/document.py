"""Question: what does one JSON document on a search for plans hold?

Schema moeprof.search/1. Sizes are bytes of one device, times seconds of one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NotRequired, TypedDict

from moeprof.answers.values import encodable
from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.memory import project
from moeprof.projector.request.search import WantedSearch
from moeprof.projector.search import Found, SearchResult
from moeprof.projector.search.space import LIMITED
from moeprof.projector.setting import Setting
from moeprof.projector.step_time import Basis, TimedRun, basis_of, estimate
from moeprof.projector.what_if import Effect
from moeprof.reports.memory.phases import (
    ErrorInfo,
    PhaseInfo,
    error_of,
    is_too_much_outside,
    phases_of,
)
from moeprof.specs.parameters import active_parameter_count, parameter_count

SCHEMA = "moeprof.search/1"


class TimeInfo(TypedDict):
    """One component of a step."""

    name: str
    kind: str
    seconds: float
    hidden_s: float
    formula: str
    source: str
    confidence: str


class CheckInfo(TypedDict):
    """What XLA's compiler lays out for a plan: bytes of args and arena together, ``verdict`` of it.

    ``peak_range_bytes`` are the least and the most, whatever kernels a run chooses; None, and a
    ``verdict`` of ``unknown``, where it could not be compiled, of which ``notes`` say why.
    """

    verdict: str
    peak_range_bytes: list[int] | None
    args_bytes: int | None
    is_range_known: bool
    compiler: str
    compile_s: float
    notes: list[str]


class BasisInfo(TypedDict):
    """Where times are from: ``source`` is ``measured``, ``calibrated`` or ``assumed``."""

    source: str
    evidence: str
    factor: float


class PlanInfo(TypedDict):
    """One plan; ``rank`` null: it is not among the plans that are listed.

    Sizes are of the step, ``margin`` and ``largest``, the row that takes most, of the phase that
    ``decides``. Ranges are those that a band gives, least first. ``closed_form_rank`` is the rank
    before the compiler was asked.
    """

    rank: int | None
    strategy: str
    remat: str
    plan: dict[str, int]
    pdbs: int
    microbatches: int
    schedule: str
    verdict: str
    margin: float
    error: ErrorInfo
    args_bytes: int
    temp_bytes: int
    outside_bytes: int
    pool_bytes: int
    mem_fraction: float
    largest: str
    decides: PhaseInfo
    seconds: float
    seconds_range: list[float]
    tokens_per_s_per_device: float
    tokens_per_s_per_device_range: list[float]
    mfu: float
    mfu_range: list[float]
    bubble: float
    basis: BasisInfo
    time: list[TimeInfo]
    closed_form_rank: int | None
    compiled: NotRequired[CheckInfo]


class EffectInfo(TypedDict):
    """What one optimisation buys the best plan."""

    optimisation: str
    is_used: bool
    saved_s: float
    saved_s_range: list[float]
    saved_bytes: int | None
    verdict: str
    price: str


class Rejected(TypedDict):
    """How many plans one reason ruled out."""

    reason: str
    plans: int


class SearchDocument(TypedDict):
    """The whole answer.

    ``order`` is ``time`` or ``fit``, ``basis`` that of the first plan. ``surest`` is the plan that
    is fastest at the slow end of its band, of those that fit with room by the compiler too where it
    was asked; null where that is the first. ``compiled_plans``: how many of the best the compiler
    saw.
    """

    schema: str
    inputs: dict[str, object]
    said: list[str]
    considered: int
    fitting: int
    borderline: int
    rejected: list[Rejected]
    order: str
    is_order_asked: bool
    basis: BasisInfo
    plans: list[PlanInfo]
    compiled_plans: int
    surest: PlanInfo | None
    nearest: PlanInfo | None
    what_if: list[EffectInfo] | None
    notes: list[str]
    arguments: list[str]


@dataclass(frozen=True)
class Answered:
    """A search and what was asked beside it.

    ``effects`` are of optimisations on the best plan, None where they were not asked for; ``runs``
    those whose steps were timed; ``projecting`` gives a setting's memory; ``checks`` are the
    compiler's, by the place of a plan in ``result.found``; ``arguments`` are the command's;
    ``correction`` is the file that ``runs`` and factors on the arena are from.
    """

    asked: WantedSearch
    result: SearchResult
    is_order_asked: bool = False
    effects: Sequence[Effect] | None = None
    runs: Sequence[TimedRun] = ()
    projecting: Callable[[Setting], MemoryBreakdown] = project
    checks: Mapping[int, CheckInfo] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    correction: str | None = None


def document_of(answered: Answered) -> SearchDocument:
    """The document of a search: what the compiler finds out of memory comes last."""
    asked, result = answered.asked, answered.result
    found = [_plan(n, one, answered) for n, one in enumerate(result.found, start=1)]
    for place, check in answered.checks.items():
        found[place]["compiled"] = check
    found.sort(key=lambda plan: is_refuted(plan))
    for rank, plan in enumerate(found, start=1):
        plan["rank"] = rank
    band = found[0]["seconds_range"] if found else [0.0, 0.0]
    band = [end / found[0]["seconds"] for end in band] if found else band
    return {
        "schema": SCHEMA,
        "inputs": {
            **_inputs(result, asked),
            "options": list(asked.shared),
            "maxtext": list(asked.maxtext),
            "correction": None if answered.correction is None else encodable(answered.correction),
        },
        "said": list(asked.said),
        "considered": result.considered,
        "fitting": result.fitting,
        "borderline": result.borderline,
        "rejected": [{"reason": reason, "plans": plans} for reason, plans in result.rejected],
        "order": result.order,
        "is_order_asked": answered.is_order_asked,
        "basis": found[0]["basis"] if found else _basis(_of_none(result, answered.runs)),
        "plans": found,
        "compiled_plans": len(answered.checks),
        "surest": _surest(found, answered),
        "nearest": None if result.nearest is None else _plan(None, result.nearest, answered),
        "what_if": None
        if answered.effects is None
        else [_effect(one, band) for one in answered.effects],
        "notes": _notes(result),
        "arguments": list(answered.arguments),
    }


def _of_none(result: SearchResult, runs: Sequence[TimedRun]) -> Basis:
    """The basis where no plan is found: of the nearest, else of the first that was searched."""
    space = result.space
    plan = replace(space.base.plan, remat=space.remats[0])
    first = replace(space.base, strategy=space.strategies[0], plan=plan)
    return basis_of(first if result.nearest is None else result.nearest.setting, runs)


def _basis(basis: Basis) -> BasisInfo:
    return {"source": basis.source, "evidence": basis.evidence, "factor": basis.factor}


def _surest(plans: Sequence[PlanInfo], answered: Answered) -> PlanInfo | None:
    """The first of the sure plans that the compiler does not doubt; None: the first of all is."""
    result = answered.result
    for one in result.sure:
        if one not in result.found:
            return _plan(None, one, answered)
        rank = result.found.index(one) + 1
        found = next(plan for plan in plans if plan["closed_form_rank"] == rank)
        if "compiled" not in found or found["compiled"]["verdict"] not in ("oom", "borderline"):
            return None if found is plans[0] else found
    return None


def is_refuted(plan: PlanInfo) -> bool:
    """Whether the compiler finds a plan out of memory."""
    return "compiled" in plan and plan["compiled"]["verdict"] == "oom"


def to_json(document: SearchDocument) -> str:
    """Strict JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _inputs(result: SearchResult, asked: WantedSearch) -> dict[str, object]:
    space, base, tuning, model_key = result.space, result.space.base, asked.tuning, asked.model_key
    return {
        "model": {
            "key": model_key,
            "name": base.model.name or model_key,
            "parameters": parameter_count(base.model),
            "active_parameters": active_parameter_count(base.model),
        },
        "hardware": {"key": base.hardware.key, "name": base.hardware.name},
        "devices": space.devices,
        "device_bytes": base.hardware.hbm_bytes,
        "mem_fraction": base.mem_fraction,
        "framework": base.framework,
        "build": base.build,
        "world": base.framework,
        "sequence": base.sequence,
        "global_batch": space.global_batch,
        "pdbs": space.pdbs,
        "strategies": [strategy.name for strategy in space.strategies],
        "remats": [remat.text for remat in space.remats],
        "allowed": {axis: sorted(degrees) for axis, degrees in space.allowed.items()},
        "sync_free": tuning.sync_free,
        "overlaps_exchange": tuning.overlaps_exchange,
    }


def _plan(rank: int | None, found: Found, answered: Answered) -> PlanInfo:
    setting = found.setting
    memory = answered.projecting(setting)
    time = estimate(setting, answered.asked.tuning, answered.runs)
    speed, (low, high) = time.tokens_per_s_per_device, time.basis.band
    phase = memory.largest
    decides = next(one for one in phases_of(memory, False) if one["name"] == phase.name)
    rows = phase.outside if is_too_much_outside(decides) else (*phase.args, *phase.temp)
    largest = max(rows, key=lambda row: float("-inf") if row.size_bytes is None else row.size_bytes)
    return {
        "rank": rank,
        "strategy": setting.strategy.name,
        "remat": setting.plan.remat.text,
        "plan": {axis: int(getattr(setting.plan, axis)) for axis in LIMITED},
        "pdbs": setting.pdbs or 0,
        "microbatches": setting.microbatches,
        "schedule": setting.schedule,
        "verdict": memory.verdict,
        "margin": found.margin,
        "error": error_of(memory),
        "args_bytes": found.args_bytes,
        "temp_bytes": found.temp_bytes,
        "outside_bytes": found.outside_bytes,
        "pool_bytes": memory.pool_bytes,
        "mem_fraction": setting.mem_fraction,
        "largest": largest.name,
        "decides": decides,
        "seconds": time.seconds,
        "seconds_range": list(time.seconds_range),
        "tokens_per_s_per_device": speed,
        "tokens_per_s_per_device_range": [speed / high, speed / low],
        "mfu": time.mfu,
        "mfu_range": [time.mfu / high, time.mfu / low],
        "bubble": time.bubble,
        "basis": _basis(time.basis),
        "time": [
            {
                "name": row.name,
                "kind": row.kind,
                "seconds": float(row.seconds),
                "hidden_s": float(row.hidden_s),
                "formula": row.formula,
                "source": row.source,
                "confidence": row.confidence,
            }
            for row in time.rows
        ],
        "closed_form_rank": rank,
    }


def _effect(effect: Effect, band: Sequence[float]) -> EffectInfo:
    return {
        "optimisation": effect.optimisation,
        "is_used": effect.is_used,
        "saved_s": effect.saved_s,
        "saved_s_range": sorted(effect.saved_s * end for end in band),
        "saved_bytes": effect.saved_bytes,
        "verdict": effect.verdict,
        "price": effect.price,
    }


def _notes(result: SearchResult) -> list[str]:
    domain = result.space.base.hardware.domain
    return [
        "Times are estimates: rates of kernels and links, and what hides behind what "
        "(moeprof/projector/step_time); what ends in _range is likely, by the errors of "
        "benchmarks/results/step_time.json. They rank plans where order is time.",
        "Plans that fit by more than the error of their account, and by more than 5 %, come before "
        "borderline ones.",
        f"Tensor, expert and context peers are taken for neighbours; {domain} devices share the "
        "fast links.",
    ]
