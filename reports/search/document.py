"""Question: what does one JSON document on a search for plans hold?

Schema moeprof.search/1. Sizes are bytes of one device, times seconds of one step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

from moeprof.projector.memory import project
from moeprof.projector.search import Found, SearchResult
from moeprof.projector.search.space import LIMITED
from moeprof.projector.step_time import estimate
from moeprof.projector.step_time.rates import Tuning
from moeprof.projector.what_if import Effect
from moeprof.reports.memory.document import ErrorInfo, error_info
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


class PlanInfo(TypedDict):
    """One plan; ``rank`` 0: it does not fit."""

    rank: int
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
    largest: str
    seconds: float
    seconds_range: list[float]
    tokens_per_s_per_device: float
    mfu: float
    bubble: float
    time: list[TimeInfo]


class EffectInfo(TypedDict):
    """What one optimisation buys the best plan."""

    optimisation: str
    is_used: bool
    saved_s: float
    saved_bytes: int | None
    verdict: str
    price: str


class Rejected(TypedDict):
    """How many plans one reason ruled out."""

    reason: str
    plans: int


class SearchDocument(TypedDict):
    """The whole answer."""

    schema: str
    inputs: dict[str, object]
    said: list[str]
    considered: int
    fitting: int
    borderline: int
    rejected: list[Rejected]
    plans: list[PlanInfo]
    nearest: PlanInfo | None
    what_if: list[EffectInfo] | None
    notes: list[str]


def document_of(
    result: SearchResult,
    model_key: str,
    said: Sequence[str],
    tuning: Tuning,
    effects: Sequence[Effect] | None,
) -> SearchDocument:
    """The document of a search; ``effects`` None: they were not asked for."""
    return {
        "schema": SCHEMA,
        "inputs": _inputs(result, model_key, tuning),
        "said": list(said),
        "considered": result.considered,
        "fitting": result.fitting,
        "borderline": result.borderline,
        "rejected": [{"reason": reason, "plans": plans} for reason, plans in result.rejected],
        "plans": [_plan(n, found, tuning) for n, found in enumerate(result.found, start=1)],
        "nearest": None if result.nearest is None else _plan(0, result.nearest, tuning),
        "what_if": None if effects is None else [_effect(one) for one in effects],
        "notes": _notes(result),
    }


def to_json(document: SearchDocument) -> str:
    """Strict JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _inputs(result: SearchResult, model_key: str, tuning: Tuning) -> dict[str, object]:
    space, base = result.space, result.space.base
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


def _plan(rank: int, found: Found, tuning: Tuning) -> PlanInfo:
    setting = found.setting
    memory, time = project(setting), estimate(setting, tuning)
    rows = (*memory.worst.args, *memory.worst.peak.rows)
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
        "error": error_info(memory.error_band),
        "args_bytes": found.args_bytes,
        "temp_bytes": found.temp_bytes,
        "outside_bytes": found.outside_bytes,
        "pool_bytes": memory.pool_bytes,
        "largest": largest.name,
        "seconds": time.seconds,
        "seconds_range": [time.seconds * time.band.low, time.seconds * time.band.high],
        "tokens_per_s_per_device": time.tokens_per_s_per_device,
        "mfu": time.mfu,
        "bubble": time.bubble,
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
    }


def _effect(effect: Effect) -> EffectInfo:
    return {
        "optimisation": effect.optimisation,
        "is_used": effect.is_used,
        "saved_s": effect.saved_s,
        "saved_bytes": effect.saved_bytes,
        "verdict": effect.verdict,
        "price": effect.price,
    }


def _notes(result: SearchResult) -> list[str]:
    domain = result.space.base.hardware.domain
    return [
        "Times are estimates: rates of kernels and links, and what hides behind what "
        "(moeprof/projector/step_time). They rank plans; their range is in seconds_range.",
        "Plans that fit by more than the error of their account, and by more than 5 %, come before "
        "borderline ones.",
        f"Tensor, expert and context peers are taken for neighbours; {domain} devices share the "
        "fast links.",
    ]
