"""Question: which run does a request mean, and what was taken where nothing was said?

What a request says comes first, then what the model's configuration says, then a default. What was
not said is told.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shown

from moeprof.errors import SelectionError, SpecError
from moeprof.projector.batches import BOUND
from moeprof.projector.breakdown import STEP
from moeprof.projector.framework import DEFAULT, Framework, framework, that_have
from moeprof.projector.request.config import with_config
from moeprof.projector.request.plan import (
    HARDWARE,
    SHARED,
    Request,
    Told,
    load_of,
    plan_of,
    read_counts,
    remarks_on,
    words_of,
)
from moeprof.projector.setting import OTHER_PHASES, MegatronOptions, Precision, Setting, usual_of
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.hardware import HardwareSpec, load_hardware
from moeprof.specs.presets import preset_names
from moeprof.specs.sources import load_model
from moeprof.specs.sources.document import NOT_READ, LoadedModel
from moeprof.specs.strategy import Strategy, parse_strategy

UNKNOWN = "unknown"
_DEEPEP = "sparse-gmm-deepep"

_SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "fp8": "float8_e4m3fn",
}
_WEIGHTS = "bfloat16"


@dataclass(frozen=True)
class Wanted:
    """What to project: ``setting`` at each of ``strategies`` and ``batches`` (none: find them).

    ``searched_by`` are words of a search for other plans of the same run.
    """

    setting: Setting
    model_key: str
    strategies: tuple[Strategy, ...]
    batches: tuple[int, ...]
    said: tuple[str, ...]
    is_fraction_asked: bool
    searched_by: tuple[str, ...] = ()


def wanted(request: Request) -> Wanted:
    """The run that a request describes, and what is told of it.

    Raises:
        SelectionError: something is missing or cannot be; wrong usage.
        SpecError: the model's configuration cannot be read.
    """
    loaded = load_named(request.model, request.maxtext)
    with as_usage():
        program = framework(request.framework or DEFAULT)
        check_options(vars(request), program)
    filled, configured = with_config(request, loaded, program)
    check_numbers(vars(filled))
    with as_usage():
        found = _wanted(filled, program, loaded, (*notes_on(loaded), *configured))
        return replace(found, searched_by=_searched_by(request, found.setting))


def _searched_by(request: Request, setting: Setting) -> tuple[str, ...]:
    """Words of a search for other plans of this run: what was said of it, the plan aside."""
    is_one = request.pdbs is not None and request.pdbs.isdecimal()
    asked = replace(request, devices=setting.plan.degree(setting.program.axes))
    asked = replace(asked, pdbs=request.pdbs if is_one else None, hardware=setting.hardware.key)
    asked = replace(asked, seq=None if request.seq == UNKNOWN else request.seq)
    names = ("model", "hardware", "devices", "framework", "seq", "pdbs", "global_batch")
    words = words_of(asked, (*names, "strategy", "remat", *SHARED))
    return (*(("--maxtext", *request.maxtext) if request.maxtext else ()), *words)


def load_named(model: str | None, maxtext: Sequence[str]) -> LoadedModel:
    """The model that is named, or that a command line of MaxText comes to.

    Raises:
        SelectionError: both are given, or none is.
    """
    if maxtext and model is None:
        from moeprof.specs.sources.maxtext_command import read_maxtext_command

        return read_maxtext_command(maxtext)
    if model is not None and maxtext:
        raise SelectionError("memory: expected --model or --maxtext, found both.")
    if model is None:
        raise SelectionError(
            "memory: expected --model with a name or a file, found none. `moeprof models` lists "
            "the names; a Hugging Face config.json or a MaxText YAML is read too, and --maxtext "
            "takes MaxText's own command line."
        )
    return load_model(model)


def notes_on(loaded: LoadedModel) -> tuple[str, ...]:
    """Notes on a model's file; a preset's are on what others published."""
    return () if loaded.origin in preset_names() else tuple(loaded.notes)


def _wanted(
    request: Request, program: Framework, loaded: LoadedModel, before: tuple[str, ...]
) -> Wanted:
    """With what the configuration says filled in; ``before`` are sentences on it."""
    hardware = load_hardware(request.hardware or HARDWARE)
    told = Told((f"hardware {HARDWARE}",) if request.hardware is None else (), before)
    plan, of_plan = plan_of(request, program)
    sequence, of_sequence = sequence_of(request)
    load, of_load = load_of(request, program, plan, sequence)
    with _naming_unread(loaded.origin, loaded.notes):
        program.check_plan(plan, loaded.model, request.devices, load.batch)
        remarks = Told(said=remarks_on(plan, loaded.model, load.batch))
    setting = Setting(
        plan=plan,
        sequence=load.batch.sequence,
        pdbs=1,
        microbatches=load.batch.microbatches,
        schedule=load.batch.schedule,
        layers_per_stage=load.batch.layers_per_stage,
        **beside_the_plan(request, program, loaded, hardware),  # type: ignore[arg-type]
    )
    strategies, of_strategies = strategies_of(request.strategy, setting)
    told = told + of_plan + of_sequence + of_load + remarks + of_strategies
    is_asked = request.mem_fraction is not None
    return Wanted(setting, loaded.origin, strategies, load.pdbs, sentences(told), is_asked)


def beside_the_plan(
    request: Request, program: Framework, loaded: LoadedModel, hardware: HardwareSpec
) -> dict[str, object]:
    """Fields of `Setting` that neither plan nor load decide."""
    return {
        "model": loaded.model,
        "strategy": Strategy("sparse-gmm"),
        "hardware": hardware,
        "framework": program.name,
        "optimizer": request.optimizer or "adamw",
        "precision": _precision(request, program, loaded),
        "offload": frozenset(_parts(request.offload)),
        "phases": _phases(request.phases),
        "eval_pdbs": _eval_pdbs(request.eval_pdbs),
        "host_memory_bytes": _host_memory(request.host_memory),
        **usual_of(hardware),
        **_given(request),
        **_of_megatron(request),
    }


def sentences(told: Told) -> tuple[str, ...]:
    """All that is told, what was taken first."""
    taken = (f"Not given, so taken: {', '.join(told.taken)}.",) if told.taken else ()
    return (*taken, *told.said)


@contextlib.contextmanager
def _naming_unread(file: str | None, notes: Sequence[str]) -> Iterator[None]:
    """Inside, a complaint on the model names keys of its file that are not read: one may be why."""
    try:
        yield
    except SpecError as error:
        unread = next((note for note in notes if note.startswith(NOT_READ)), "")
        raise SpecError(f"{error} In {file} {unread}." if unread else str(error)) from error


@contextlib.contextmanager
def as_usage() -> Iterator[None]:
    """Inside, what cannot be was said by an option: wrong usage."""
    try:
        yield
    except SpecError as error:
        raise SelectionError(str(error)) from error


def read_dtype(option: str, text: str) -> str:
    """A number format by its short or full name.

    Raises:
        SpecError: there is none of that name.
    """
    name = _SHORT_DTYPES.get(text, text)
    if name not in DTYPE_BYTES:
        known = ", ".join([*_SHORT_DTYPES, *DTYPE_BYTES])
        raise SpecError(f"{option}: expected one of {known}, found {text!r}.")
    return name


def sequence_of(request: Request) -> tuple[int | None, Told]:
    """Tokens of a sequence, None where they are unknown, and what was filled in.

    Raises:
        SpecError: they are no whole number.
    """
    if request.seq is None:
        return 4096, Told(taken=("seq 4096",))
    if request.seq == UNKNOWN:
        return None, Told()
    return read_counts("--seq", request.seq, f"one, or {UNKNOWN}")[0], Told()


def _precision(request: Request, program: Framework, loaded: LoadedModel) -> Precision:
    """Number formats; what is not said is as the framework has it.

    A MaxText YAML that names no format has MaxText's own: computing in bfloat16, float32 weights.
    """
    master = request.master_dtype
    named = {
        "weights": ("--weight-dtype", request.weight_dtype),
        "master": ("--master-dtype", None if master == "none" else master),
        "first_moment": ("--moment-dtype", request.moment_dtype),
        "second_moment": ("--moment-dtype", request.moment_dtype),
        "gradients": ("--grad-dtype", request.grad_dtype),
        "compute": ("dtype", request.compute_dtype),
    }
    asked = {
        name: read_dtype(option, text) for name, (option, text) in named.items() if text is not None
    }
    is_maxtext = loaded.origin.lower().endswith((".yml", ".yaml"))
    weights = loaded.model.weight_dtype if is_maxtext else _WEIGHTS
    made = program.precision(asked, weights)
    return replace(made, master=None) if master == "none" else made


def _given(request: Request) -> dict[str, object]:
    """Options that stand for fields of `Setting` by the same name, where they were given."""
    names = ("mem_fraction", "ragged_buffer_factor", "vocab_tiling", "deepep_sms",
             "attention", "recomputed_layers", "maxtext_build", "is_scanned",
             "has_float32_weight_sum")  # fmt: skip
    values = {name: getattr(request, name) for name in names}
    values |= {"has_fused_loss": request.fused_loss, "overload": request.imbalance}
    return {name: value for name, value in values.items() if value is not None}


def _phases(names: tuple[str, ...]) -> frozenset[str]:
    """What a run does beside its step: all where nothing was said, ``step`` alone is nothing.

    Raises:
        SpecError: there is none of a name.
    """
    asked, known = _parts(names) or ("all",), (*OTHER_PHASES, STEP, "all")
    for name in asked:
        if name not in known:
            raise SpecError(f"--phases: expected some of {', '.join(known)}, found {name!r}.")
    return frozenset(OTHER_PHASES if "all" in asked else asked) - {STEP}


def _eval_pdbs(size: int | None) -> int | None:
    if size is not None and size > BOUND:
        raise SpecError(f"eval-pdbs: expected at most {BOUND}, found {shown(size)}.")
    return size


def _host_memory(gib: float | None) -> int | None:
    if gib is not None and not 0 < gib < math.inf:
        raise SpecError(f"host-memory: expected GiB above 0, found {gib:g}.")
    return None if gib is None else int(gib * 2**30)


def _of_megatron(request: Request) -> dict[str, object]:
    """What Megatron alone lets a run choose."""
    if request.sequence_parallel is None:
        return {}
    return {"megatron": MegatronOptions(has_sequence_parallel=request.sequence_parallel)}


def strategies_of(names: tuple[str, ...], setting: Setting) -> tuple[tuple[Strategy, ...], Told]:
    """The strategies that were asked for, in order and once each; a dense model has one."""
    every = setting.program.strategies
    if not setting.model.experts and not names:
        alike = "The model has no experts: strategies make no difference, one stands for all."
        return (parse_strategy(every[0]),), Told(said=(alike,))
    asked, told = _parts(names) or ("all",), Told()
    if setting.hardware.vendor == "Google" and "all" in asked:
        every = tuple(name for name in every if name != _DEEPEP)
        told = Told(said=(f"{_DEEPEP}: left out, DeepEP runs on GPUs.",))
    found = [n for name in asked for n in (every if name == "all" else (name,))]
    strategies = tuple(parse_strategy(name) for name in dict.fromkeys(found))
    for strategy in strategies:
        replace(setting, strategy=strategy)  # refused here where the hardware does not run it
    return strategies, told


def _parts(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for name in names for part in name.split(",") if part.strip())


MOST = 10**9
"""No whole number of a run is above this: sizes that are computed of larger ones overflow."""


def check_numbers(given: Mapping[str, object]) -> None:
    """Refuse whole numbers, by the names of options, that no run has.

    Raises:
        SelectionError: one is given.
    """
    for name, value in given.items():
        parts = value.split(",") if isinstance(value, str) and name != "model" else [value]
        for part in parts:
            number = int(part) if isinstance(part, str) and part.strip().isdecimal() else part
            if isinstance(number, int) and number > MOST:
                option = f"--{name.replace('_', '-')}"
                raise SelectionError(f"{option}: expected at most {MOST:,}, found {value}.")


# An option that changes nothing is refused, so that nobody takes an answer for one about it. What a
# model's configuration says, and the program does not have, is left out without a complaint.


def check_options(given: Mapping[str, object], program: Framework) -> None:
    """Refuse options, by name, that a framework has none of; None: not given.

    Raises:
        SpecError: one is given.
    """
    for name in program.lacks:
        if given.get(name) is None:
            continue
        raise SpecError(
            f"--{name.replace('_', '-')}: framework {program.name} does not have it. "
            f"Leave it out, or give --framework {' or '.join(that_have(name))}."
        )
