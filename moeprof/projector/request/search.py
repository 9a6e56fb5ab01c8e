"""Question: which plans does a request for a search mean, and what was taken beside it?

What plans share is read as `moeprof memory` reads it: what was asked for first, then what the
model's configuration says, then a default. What is searched is not taken from a configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SelectionError
from moeprof.projector.framework import DEFAULT, Framework, framework
from moeprof.projector.request import (
    as_usage,
    beside_the_plan,
    check_numbers,
    check_options,
    load_named,
    notes_on,
    sentences,
    sequence_of,
    strategies_of,
)
from moeprof.projector.request.config import with_config
from moeprof.projector.request.plan import (
    HARDWARE,
    SHARED,
    Request,
    SharedRequest,
    Told,
    read_counts,
    words_of,
)
from moeprof.projector.search.space import Space
from moeprof.projector.setting import Setting
from moeprof.projector.step_time.rates import Tuning
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import divisors
from moeprof.specs.plan import SHORT, ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.sources.document import LoadedModel

_SEARCHED = frozenset({*SHORT, "strategy", "pdbs", "microbatches", "eval_pdbs"})


@dataclass(frozen=True)
class SearchRequest(SharedRequest):
    """What was said about a search, by the names of its options; None and empty: nothing.

    ``ep`` to ``etp`` are lists with commas of the degrees that are allowed; ``maxtext`` as of
    `Request`.
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
    sync_free: int = 0
    overlap: bool = False
    maxtext: tuple[str, ...] = ()


@dataclass(frozen=True)
class WantedSearch:
    """What to search, what every plan does about time, and sentences on both.

    ``shared`` are the options that a projection of one of the plans needs beside it, ``maxtext``
    the command line of MaxText that stands in place of a model.
    """

    space: Space
    tuning: Tuning
    model_key: str
    said: tuple[str, ...]
    shared: tuple[str, ...] = ()
    maxtext: tuple[str, ...] = ()


def wanted_search(request: SearchRequest) -> WantedSearch:
    """What is searched, and what was taken where nothing was said.

    Raises:
        SelectionError: something is missing or cannot be; wrong usage.
        SpecError: the model's configuration cannot be read.
    """
    is_named = request.model is not None or request.maxtext
    if not is_named or request.devices is None:
        missing = " and ".join(
            option
            for option, is_given in (("--model", is_named), ("--devices", request.devices))
            if not is_given
        )
        raise SelectionError(
            f"memory search: expected {missing}, found none. "
            "For example: --model deepseek_v3 --devices 64."
        )
    loaded = load_named(request.model, request.maxtext)
    with as_usage():
        program = framework(request.framework or DEFAULT)
        tuned = {"sync_free": request.sync_free or None, "overlap": request.overlap or None}
        check_options({**vars(request), **tuned}, program)
    filled, configured = with_config(_shared(request), loaded, program, _SEARCHED)
    for asked in (request, filled):
        check_numbers(vars(asked))
    with as_usage():
        said = Told(said=(*notes_on(loaded), *configured))
        return _wanted(request, filled, program, loaded, said)


def _shared(request: SearchRequest) -> Request:
    """What all plans share; several policies of rematerialisation are searched."""
    said = {name: getattr(request, name) for name in SHARED}
    return Request(
        model=request.model,
        maxtext=request.maxtext,
        hardware=request.hardware,
        devices=request.devices,
        seq=None if request.seq is None else str(request.seq),
        remat=" and ".join(request.remat) or None,
        framework=request.framework,
        **said,
    )


def _wanted(
    request: SearchRequest, filled: Request, program: Framework, loaded: LoadedModel, before: Told
) -> WantedSearch:
    hardware = load_hardware(request.hardware or HARDWARE)
    sequence, of_sequence = sequence_of(filled)
    base = Setting(
        plan=ParallelPlan(),
        sequence=sequence,
        schedule=program.searched_schedule,
        **beside_the_plan(filled, program, loaded, hardware),  # type: ignore[arg-type]
    )
    assert request.devices is not None
    strategies, of_strategies = strategies_of(request.strategy, base)
    of_file = (filled.remat,) if filled.remat else ()
    policies = request.remat or of_file or program.searched_remats
    space = Space(
        base=base,
        devices=request.devices,
        strategies=strategies,
        remats=tuple(Remat(policy) for policy in dict.fromkeys(policies)),
        allowed=_allowed(request, program, request.devices),
        global_batch=request.global_batch,
        pdbs=request.pdbs,
        leaves_room=request.mem_fraction is None,
    )
    told = Told(() if request.hardware else (f"hardware {HARDWARE}",))
    told = told + before + of_sequence + of_strategies
    tuning = Tuning(request.sync_free, request.overlap)
    return WantedSearch(
        space, tuning, loaded.origin, sentences(told), words_of(request, SHARED), request.maxtext
    )


def _allowed(request: SearchRequest, program: Framework, devices: int) -> dict[str, frozenset[int]]:
    """Degrees that were asked for, by axis."""
    allowed = dict.fromkeys(program.missing_axes, frozenset({1}))
    for name, axis in SHORT.items():
        text = getattr(request, name)
        if text is not None:
            allowed[axis] = frozenset(read_counts(f"--{name}", text))
    if request.max_ep is not None:
        below = allowed.get("expert", frozenset(divisors(devices)))
        allowed["expert"] = frozenset(degree for degree in below if degree <= request.max_ep)
    return allowed
