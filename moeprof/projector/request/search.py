"""Question: which plans does a request for a search mean, and what was taken beside it?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeprof.errors import SelectionError
from moeprof.projector.framework import DEFAULT, Framework, framework
from moeprof.projector.request import (
    as_usage,
    check_options,
    notes_on,
    precision_of,
    sentences,
    strategies_of,
)
from moeprof.projector.request.config import HARDWARE, Request
from moeprof.projector.request.plan import Told, read_counts
from moeprof.projector.search.space import Space
from moeprof.projector.setting import Setting, usual_of
from moeprof.projector.step_time.rates import Tuning
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import divisors
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.sources import load_model
from moeprof.specs.sources.document import LoadedModel
from moeprof.specs.strategy import Strategy

AXES = {
    "ep": "expert",
    "fsdp": "fsdp",
    "dp": "data",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "vpp": "virtual",
    "etp": "expert_tensor",
}
"""Option → the degree that it limits."""


@dataclass(frozen=True)
class SearchRequest:
    """What was said about a search, by the names of its options; None and empty: nothing.

    ``ep`` to ``etp`` are lists with commas of the degrees that are allowed.
    """

    model: str | None = None
    hardware: str | None = None
    devices: int | None = None
    seq: int | None = None
    global_batch: int | None = None
    pdbs: int | None = None
    strategy: tuple[str, ...] = ()
    remat: tuple[str, ...] = ()
    framework: str | None = None
    max_ep: int | None = None
    ep: str | None = None
    fsdp: str | None = None
    dp: str | None = None
    tp: str | None = None
    cp: str | None = None
    pp: str | None = None
    vpp: str | None = None
    etp: str | None = None
    weight_dtype: str | None = None
    mem_fraction: float | None = None
    sync_free: int = 0
    overlap: bool = False


@dataclass(frozen=True)
class WantedSearch:
    """What to search, what every plan does about time, and what is told of both."""

    space: Space
    tuning: Tuning
    model_key: str
    said: tuple[str, ...]


def wanted_search(request: SearchRequest) -> WantedSearch:
    """What is searched, and what was taken where nothing was said.

    Raises:
        SelectionError: something is missing or cannot be; wrong usage.
        SpecError: the model's configuration cannot be read.
    """
    if request.model is None or request.devices is None:
        missing = " and ".join(
            f"--{name}" for name in ("model", "devices") if getattr(request, name) is None
        )
        raise SelectionError(
            f"memory search: expected {missing}, found none. "
            "For example: --model deepseek_v3 --devices 64."
        )
    loaded = load_model(request.model)
    with as_usage():
        return _wanted(request, loaded, request.devices)


def _wanted(request: SearchRequest, loaded: LoadedModel, devices: int) -> WantedSearch:
    program = framework(request.framework or DEFAULT)
    base = _base(request, loaded, program)
    tuned = {"sync_free": request.sync_free or None, "overlap": request.overlap or None}
    check_options({**vars(request), **tuned}, program)
    strategies, of_strategies = strategies_of(request.strategy, base)
    policies = request.remat or program.searched_remats
    space = Space(
        base=base,
        devices=devices,
        strategies=strategies,
        remats=tuple(Remat(policy) for policy in dict.fromkeys(policies)),
        allowed=_allowed(request, program, devices),
        global_batch=request.global_batch,
        pdbs=request.pdbs,
        leaves_room=request.mem_fraction is None,
    )
    told = Told(() if request.hardware else (f"hardware {HARDWARE}",)) + of_strategies
    said = (*notes_on(loaded), *sentences(told))
    return WantedSearch(space, Tuning(request.sync_free, request.overlap), loaded.origin, said)


def _base(request: SearchRequest, loaded: LoadedModel, program: Framework) -> Setting:
    """What all plans share."""
    hardware = load_hardware(request.hardware or HARDWARE)
    shared = Setting(
        model=loaded.model,
        plan=ParallelPlan(),
        strategy=Strategy("sparse-gmm"),
        hardware=hardware,
        sequence=request.seq or 4096,
        framework=program.name,
        schedule=program.searched_schedule,
        precision=precision_of(Request(weight_dtype=request.weight_dtype), program, loaded),
        **usual_of(hardware),  # type: ignore[arg-type]
    )
    if request.mem_fraction is None:
        return shared
    return replace(shared, mem_fraction=request.mem_fraction)


def _allowed(request: SearchRequest, program: Framework, devices: int) -> dict[str, frozenset[int]]:
    """Degrees that were asked for, by axis."""
    allowed = dict.fromkeys(program.missing_axes, frozenset({1}))
    for name, axis in AXES.items():
        text = getattr(request, name)
        if text is not None:
            allowed[axis] = frozenset(read_counts(f"--{name}", text))
    if request.max_ep is not None:
        below = allowed.get("expert", frozenset(divisors(devices)))
        allowed["expert"] = frozenset(degree for degree in below if degree <= request.max_ep)
    return allowed
