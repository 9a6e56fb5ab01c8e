"""Question: what can be said about a run, and over which devices is its model spread?

A `Request` is what was asked for.

The run has as many devices as the product of its degrees, unless --devices says how many; then a
degree of -1 takes what is left, or fsdp, or dp where fsdp is said. Of sequences either pdbs (per
device and microbatch) is said, or the global batch of a step, or both: then the microbatches
follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from moeprof.errors import SelectionError, SpecError
from moeprof.projector.batches import BOUND
from moeprof.projector.framework import Framework
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import ALL_AXES, SHORT, ParallelPlan
from moeprof.specs.plan_checks import Batch, plan_remarks
from moeprof.specs.remat import Remat
from moeprof.specs.sources.document import LoadedModel

HARDWARE = "h100_sxm"
DEGREES = {short: axis for short, axis in SHORT.items() if axis in ALL_AXES}
"""Option → the degree of parallelism that it says."""


@dataclass(frozen=True)
class SharedRequest:
    """What is said alike of one run, and of all plans of a search."""

    weight_dtype: str | None = None
    master_dtype: str | None = None
    moment_dtype: str | None = None
    grad_dtype: str | None = None
    optimizer: str | None = None
    mem_fraction: float | None = None
    imbalance: float | None = None
    ragged_buffer_factor: float | None = None
    vocab_tiling: int | None = None
    fused_loss: bool | None = None
    sequence_parallel: bool | None = None
    deepep_sms: int | None = None
    maxtext_build: str | None = None
    offload: tuple[str, ...] = ()
    attention: str | None = None
    phases: tuple[str, ...] = ()
    eval_pdbs: int | None = None
    host_memory: float | None = None


SHARED = tuple(field.name for field in fields(SharedRequest))
"""Options of `Request` that all plans of a search share."""


def words_of(request: SharedRequest, names: Iterable[str]) -> tuple[str, ...]:
    """The words of a command that say these fields again; what was not said has none."""
    words: list[str] = []
    for name in names:
        value, option = getattr(request, name), f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        elif value not in (None, ()):
            for one in value if isinstance(value, tuple) else (value,):
                words += [option, f"{one:.15g}" if isinstance(one, float) else str(one)]
    return tuple(words)


@dataclass(frozen=True)
class Request(SharedRequest):
    """What was said about a run, by the names of the command's options; None and empty: nothing.

    ``framework``: whose program. ``seq`` may be ``unknown``; ``pdbs`` is a list with commas, or
    ``auto``; ``host_memory`` is in GiB. ``compute_dtype``, ``is_scanned`` and
    ``has_float32_weight_sum`` are of MaxText's configuration alone. ``maxtext`` is a command line
    of MaxText in place of a model: its file, then ``key=value``. Others are as their options in
    ``moeprof memory --help``.
    """

    model: str | None = None
    hardware: str | None = None
    devices: int | None = None
    ep: int | None = None
    fsdp: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    dp: int | None = None
    etp: int | None = None
    seq: str | None = None
    pdbs: str | None = None
    global_batch: int | None = None
    strategy: tuple[str, ...] = ()
    remat: str | None = None
    recomputed_layers: int | None = None
    framework: str | None = None
    schedule: str | None = None
    microbatches: int | None = None
    layers_per_stage: str | None = None
    compute_dtype: str | None = None
    is_scanned: bool | None = None
    has_float32_weight_sum: bool | None = None
    maxtext: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """What is told of a request: what was ``taken`` where nothing was given, and sentences."""

    taken: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    def __add__(self, more: Told) -> Told:
        """Both, in order."""
        return Told((*self.taken, *more.taken), (*self.said, *more.said))


def plan_of(request: Request, program: Framework) -> tuple[ParallelPlan, Told]:
    """The plan, not yet checked against the model, and what was filled in.

    Raises:
        SpecError: degrees do not fit each other or the devices.
    """
    given = {name: getattr(request, name) for name in DEGREES}
    open_name = _open_name(given, request)
    known = {name: 1 if degree in (None, -1) else degree for name, degree in given.items()}
    factors = {n: d for n, d in known.items() if not (program.folds_experts and n == "ep")}
    told = Told()
    if request.devices is not None:
        name = open_name or next((n for n in program.open_degrees if given[n] is None), None)
        if name is not None:
            known[name] = _left(name, factors, request.devices, open_name is not None)
            left = f"--{name} is {known[name]}: what is left of {request.devices} devices."
            told = Told(said=(left,))
    elif program.folds_experts and given["dp"] is None:
        known["dp"] = _replicas_for_experts(known, request.etp or 1)
        told = Told(taken=(f"dp {known['dp']}",))
    elif not any(given.values()):
        told = Told(taken=("1 device",))
    plan = ParallelPlan(
        **{field: known[name] for name, field in DEGREES.items()},
        expert_tensor=request.etp or 1,
        virtual=request.vpp or 1,
        remat=Remat(request.remat or "full"),
    )
    return plan, told


def remarks_on(plan: ParallelPlan, model: ModelSpec, batch: Batch) -> tuple[str, ...]:
    """Sentences on what is legal and may surprise."""
    remarks = plan_remarks(plan, model, batch)
    return tuple(f"{remark[0].upper()}{remark[1:]}." for remark in remarks)


def _open_name(given: Mapping[str, int | None], request: Request) -> str | None:
    """The degree that takes what is left, if one is -1."""
    zero = next((name for name, degree in given.items() if degree == 0), None)
    if zero:
        raise SpecError(f"--{zero}: expected at least 1, or -1 for what is left, found 0.")
    names = [name for name, degree in given.items() if degree == -1]
    if len(names) > 1:
        raise SpecError(
            f"plan: only one degree may be -1, found {' and '.join(f'--{n}' for n in names)}."
        )
    if names and request.devices is None:
        raise SpecError(
            f"--{names[0]} -1 takes what is left of the devices: say how many with --devices."
        )
    return names[0] if names else None


def _replicas_for_experts(known: Mapping[str, int], expert_tensor: int) -> int:
    """Data parallelism that experts need in Megatron-LM: EP · ETP lies inside TP · CP · DP."""
    spread = known["ep"] * expert_tensor
    return max(1, spread // math.gcd(spread, known["tp"] * known["cp"] * known["fsdp"]))


def _left(name: str, known: dict[str, int], devices: int, is_asked: bool) -> int:
    others = math.prod(degree for other, degree in known.items() if other != name)
    if devices % others == 0:
        return devices // others
    if not is_asked:
        return 1  # the check of the plan says what does not fit
    product = " × ".join(f"{n} {d}" for n, d in known.items() if n != name and d != 1)
    raise SpecError(f"--{name} -1: {devices} devices are not a multiple of {others} ({product}).")


# The load: sequences of a device, microbatches, the order of the pipeline.

AUTO = "auto"


class Load(NamedTuple):
    """What goes through a device; ``pdbs`` empty: those around the limit are to be found."""

    batch: Batch
    pdbs: tuple[int, ...]


def load_of(
    request: Request, program: Framework, plan: ParallelPlan, sequence: int | None
) -> tuple[Load, Told]:
    """The batch of a run, and what was filled in.

    Raises:
        SpecError: numbers are no numbers, or contradict each other.
    """
    pdbs = _asked(request)
    shards = plan.degree(program.batch_axes)
    per_device = _per_device(request, shards)
    microbatches, told = _microbatches(request, plan, per_device, pdbs)
    batch = Batch(
        sequence=sequence,
        microbatches=microbatches,
        device_batch=per_device,
        global_batch=request.global_batch,
        schedule=request.schedule or program.schedules[plan.virtual > 1],
        layers_per_stage=_layers(request),
    )
    if per_device is None:
        return Load(batch, pdbs), told
    each = (per_device // microbatches,)
    if pdbs and each != pdbs:
        raise SpecError(
            f"--global-batch {request.global_batch} is pdbs {each[0]} on {shards} batch shards × "
            f"{microbatches} microbatches, found --pdbs {request.pdbs}. Give one of them."
        )
    is_pdbs = (
        f"Global batch {request.global_batch} is pdbs {each[0]} on {shards} batch shards × "
        f"{microbatches} microbatch{'es' if microbatches > 1 else ''}."
    )
    return Load(batch, each), told + Told(said=(is_pdbs,))


def read_counts(option: str, text: str, how: str = "some, such as 4,8") -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them.

    Raises:
        SpecError: `text` is something else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) >= 1 for part in parts):
        raise SpecError(f"{option}: expected whole numbers of at least 1 ({how}), found {text!r}.")
    return tuple(int(part) for part in parts)


def _asked(request: Request) -> tuple[int, ...]:
    if request.pdbs in (None, AUTO):
        return ()
    found = read_counts("--pdbs", str(request.pdbs), "4,8 or auto")
    if max(found) > BOUND:
        raise SpecError(f"--pdbs: expected at most {BOUND}, found {max(found)}.")
    return found


def _per_device(request: Request, shards: int) -> int | None:
    """Sequences of a step per device; at least 1 where they cannot be split evenly."""
    return None if request.global_batch is None else max(1, request.global_batch // shards)


def _microbatches(
    request: Request, plan: ParallelPlan, per_device: int | None, pdbs: tuple[int, ...]
) -> tuple[int, Told]:
    """As said; with a global batch what is left of it; for a pipeline two per stage."""
    if request.microbatches is not None:
        return request.microbatches, Told()
    if per_device is not None and len(pdbs) == 1 and per_device % pdbs[0] == 0:
        return per_device // pdbs[0], Told()
    if plan.pipeline == 1:
        return 1, Told()
    if per_device is not None:
        return per_device, Told()
    number = 2 * plan.pipeline
    return number, Told(taken=(f"{number} microbatches (two per stage)",))


def _layers(request: Request) -> tuple[int, ...] | None:
    text = request.layers_per_stage
    return None if text is None else read_counts("--layers-per-stage", text)


# MaxText's batch is per device of all; activations are split over data, fsdp and expert alone, so
# the devices of another axis share theirs, and a pipeline cuts them into its microbatches.

PER_DEVICE = {"per_device_batch_size": "pdbs", "eval_per_device_batch_size": "eval_pdbs"}
"""Key of MaxText → the field of `Request` that holds the sequences of a part of the batch."""


def batches(
    loaded: LoadedModel, request: Request, degrees: Mapping[str, int]
) -> dict[str, tuple[str, object]]:
    """Sequences of each part of the batch and microbatch, and how many microbatches, as fields.

    ``degrees`` by options, as `DEGREES`. What the request says itself is left out: it wins.

    Raises:
        SelectionError: MaxText has none of a number; a word of its command line says it.
        SpecError: the same, in a file.
    """
    given, stages = loaded.options, degrees.get("pp", 1)
    sharing = stages * degrees.get("tp", 1) * degrees.get("cp", 1)
    found: dict[str, tuple[str, object]] = {}
    key, parts = "num_pipeline_microbatches", 1
    if stages > 1:
        is_said = given.get(key) not in (None, -1)
        own = loaded.value(key, lambda value, what: _rounds(value, what, stages)) if is_said else 0
        parts = request.microbatches or own or stages
        if is_said or (request.microbatches is None and "per_device_batch_size" in given):
            times = given.get("gradient_accumulation_steps")
            steps = times if isinstance(times, int) and times > 1 else 1
            label = f"gradient_accumulation_steps {steps} × {key}" if steps > 1 else key
            found["microbatches"] = (label, steps * (own or stages))
    for size, field in PER_DEVICE.items():
        value = given.get(size)
        if value is None or (field == "eval_pdbs" and value == 0):
            continue  # an evaluation of 0: as at a step
        if getattr(request, field) is not None:
            found[field] = (size, value)
        elif not (field == "pdbs" and stages > 1 and request.global_batch):
            each = loaded.value(size, lambda v, what: _part(v, what, sharing, parts))
            label = size if each == value else f"{size} {value:g}, so of each data × fsdp × expert"
            found[field] = (label, str(each) if field == "pdbs" else each)
    return found


def _rounds(value: object, what: str, stages: int) -> int:
    """Microbatches of a pipeline."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value % stages:
        raise SpecError(
            f"{what}: expected a multiple of the {stages} stages, as MaxText does, found {value!r}."
        )
    return value


def _part(value: object, what: str, sharing: int, parts: int) -> int:
    """A size per device of all as one per part of the batch and microbatch."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SpecError(f"{what}: expected a number above 0, found {value!r}.")
    each = value * sharing / parts
    if each != int(each) or each < 1:
        raise SpecError(
            f"{what} {value:g}: expected whole sequences, found {each:g} for each of data × fsdp × "
            f"expert (its {sharing} devices share them)."
        )
    return int(each)


# The mesh of MaxText is of slices: on GPUs each host is one, as JAX reports them.


def fill_mesh(
    inside: dict[str, int], across: dict[str, int], request: Request, slices: int | None
) -> None:
    """Give each level's degree of -1 what is left: inside a slice (ici) and across them (dcn).

    ``slices`` is None where nothing was said of their number; the devices decide it then, whether
    they were given or follow from the degrees.

    Raises:
        SelectionError: the degrees do not multiply to the devices, as in MaxText.
    """
    said = math.prod(degree for degree in across.values() if degree > 0)
    devices = request.devices or math.prod(inside.values()) * (slices or said)
    each = load_hardware(request.hardware or HARDWARE).slice_devices
    if slices is None:
        slices = max(1, devices // each) if is_gpu(request) else said
    _fill("ici", inside, devices // slices, (devices, slices, each))
    _fill("dcn", across, slices, (devices, slices, each))


def is_gpu(request: Request) -> bool:
    """Whether a request's devices are GPUs."""
    return load_hardware(request.hardware or HARDWARE).vendor != "Google"


def _fill(level: str, degrees: dict[str, int], product: int, of: tuple[int, int, int]) -> None:
    """Give the one that is -1 what is left; all of them multiply to the product.

    ``of`` has devices, slices, and the devices of a slice.
    """
    devices, slices, each = of
    known = math.prod(degree for degree in degrees.values() if degree > 0)
    names = [key for key, degree in degrees.items() if degree == -1]
    is_whole = devices % slices == 0
    if is_whole and len(names) == 1 and product % known == 0:
        degrees[names[0]] = product // known
    elif names or known != product or not is_whole:
        found = ", ".join(f"{level}_{key} {n}" for key, n in degrees.items() if n != 1) or "all 1"
        raise SelectionError(
            f"memory: expected {level} degrees that multiply to {product}, of {devices} "
            f"devices in {slices} slice{'s' if slices > 1 else ''} (on GPUs each host of "
            f"{each} is one; num_slices=N says otherwise), found {found}."
        )
