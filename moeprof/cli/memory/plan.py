"""Question: over which devices does a user spread a model, and what does each take in a step?

The run has as many devices as the product of its degrees, unless --devices says how many; then a
degree of -1 takes what is left, or fsdp, or dp where fsdp is said. Of sequences either pdbs (per
device and microbatch) is said, or the global batch of a step, or both: then the microbatches
follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from moeprof.cli.memory.options import RunOptions
from moeprof.errors import SpecError
from moeprof.projector.batches import BOUND
from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.plan_checks import Batch, check_megatron_plan, check_plan, plan_remarks
from moeprof.specs.remat import Remat

MEGATRON = "megatron"
_FIELDS = {
    "dp": "data",
    "fsdp": "fsdp",
    "ep": "expert",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
}


def plan_of(options: RunOptions, taken: list[str], said: list[str]) -> ParallelPlan:
    """The plan, not yet checked against the model; what was filled in is appended to ``said``.

    Raises:
        SpecError: degrees do not fit each other or the devices.
    """
    is_megatron = options.world == MEGATRON
    given = {name: getattr(options, name) for name in _FIELDS}
    open_name = _open_name(given, options)
    known = {name: 1 if degree in (None, -1) else degree for name, degree in given.items()}
    # In Megatron-LM experts lie inside the other degrees.
    factors = {n: d for n, d in known.items() if not (is_megatron and n == "ep")}
    if options.devices is not None:
        name = open_name or _free(given, options)
        if name is not None:
            known[name] = _left(name, factors, options.devices, open_name is not None)
            said.append(f"--{name} is {known[name]}: what is left of {options.devices} devices.")
    elif is_megatron and given["dp"] is None:
        known["dp"] = _replicas_for_experts(known, options.etp or 1)
        taken.append(f"dp {known['dp']}")
    elif not any(given.values()):
        taken.append("1 device")
    return ParallelPlan(
        **{field: known[name] for name, field in _FIELDS.items()},
        expert_tensor=options.etp or 1,
        virtual=options.vpp or 1,
        remat=Remat(options.remat or "full"),
    )


def check(options: RunOptions, plan: ParallelPlan, model: ModelSpec, batch: Batch) -> list[str]:
    """Check a plan against model, devices and batch; sentences on what is legal and may surprise.

    Raises:
        SpecError: all complaints at once.
    """
    checks = check_megatron_plan if options.world == MEGATRON else check_plan
    checks(plan, model, options.devices, batch)
    return [f"{remark[0].upper()}{remark[1:]}." for remark in plan_remarks(plan, model, batch)]


def _open_name(given: Mapping[str, int | None], options: RunOptions) -> str | None:
    """The degree that takes what is left, if one is -1."""
    zero = next((name for name, degree in given.items() if degree == 0), None)
    if zero:
        raise SpecError(f"--{zero}: expected at least 1, or -1 for what is left, found 0.")
    names = [name for name, degree in given.items() if degree == -1]
    if len(names) > 1:
        raise SpecError(
            f"plan: only one degree may be -1, found {' and '.join(f'--{n}' for n in names)}."
        )
    if names and options.devices is None:
        raise SpecError(
            f"--{names[0]} -1 takes what is left of the devices: say how many with --devices."
        )
    return names[0] if names else None


def _replicas_for_experts(known: Mapping[str, int], expert_tensor: int) -> int:
    """Data parallelism that experts need in Megatron-LM: EP · ETP lies inside TP · CP · DP."""
    spread = known["ep"] * expert_tensor
    return max(1, spread // math.gcd(spread, known["tp"] * known["cp"] * known["fsdp"]))


def _free(given: Mapping[str, int | None], options: RunOptions) -> str | None:
    """The degree that is not said and takes what is left: fsdp, else dp; Megatron: dp."""
    order = ("dp",) if options.world == MEGATRON else ("fsdp", "dp")
    return next((name for name in order if given[name] is None), None)


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
    options: RunOptions,
    plan: ParallelPlan,
    sequence: int | None,
    taken: list[str],
    said: list[str],
) -> Load:
    """The batch of a run; what was filled in is appended to ``taken`` and ``said``.

    Raises:
        SpecError: numbers are no numbers, or contradict each other.
    """
    pdbs = _asked(options)
    shards = plan.degree(("data", "fsdp") if options.world == MEGATRON else AXES)
    per_device = _per_device(options, shards)
    microbatches = _microbatches(options, plan, per_device, pdbs, taken)
    batch = Batch(
        sequence=sequence,
        microbatches=microbatches,
        device_batch=per_device,
        global_batch=options.global_batch,
        schedule=_schedule(options, plan),
        layers_per_stage=_layers(options),
    )
    if per_device is None:
        return Load(batch, pdbs)
    each = (per_device // microbatches,)
    if pdbs and each != pdbs:
        raise SpecError(
            f"--global-batch {options.global_batch} is pdbs {each[0]} on {shards} batch shards × "
            f"{microbatches} microbatches, found --pdbs {options.pdbs}. Give one of them."
        )
    said.append(
        f"Global batch {options.global_batch} is pdbs {each[0]} on {shards} batch shards × "
        f"{microbatches} microbatch{'es' if microbatches > 1 else ''}."
    )
    return Load(batch, each)


def read_counts(option: str, text: str, how: str = "some, such as 4,8") -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them.

    Raises:
        SpecError: `text` is something else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) >= 1 for part in parts):
        raise SpecError(f"{option}: expected whole numbers of at least 1 ({how}), found {text!r}.")
    return tuple(int(part) for part in parts)


def _asked(options: RunOptions) -> tuple[int, ...]:
    if options.pdbs in (None, AUTO):
        return ()
    found = read_counts("--pdbs", str(options.pdbs), "4,8 or auto")
    if max(found) > BOUND:
        raise SpecError(f"--pdbs: expected at most {BOUND}, found {max(found)}.")
    return found


def _per_device(options: RunOptions, shards: int) -> int | None:
    """Sequences of a step per device; at least 1 where they cannot be split evenly."""
    return None if options.global_batch is None else max(1, options.global_batch // shards)


def _microbatches(
    options: RunOptions,
    plan: ParallelPlan,
    per_device: int | None,
    pdbs: tuple[int, ...],
    taken: list[str],
) -> int:
    """As said; with a global batch what is left of it; for a pipeline two per stage."""
    if options.microbatches is not None:
        return options.microbatches
    if per_device is not None and len(pdbs) == 1 and per_device % pdbs[0] == 0:
        return per_device // pdbs[0]
    if plan.pipeline == 1:
        return 1
    if per_device is not None:
        return per_device
    taken.append(f"{2 * plan.pipeline} microbatches (two per stage)")
    return 2 * plan.pipeline


def _schedule(options: RunOptions, plan: ParallelPlan) -> str:
    """MaxText's pipeline is GPipe, or circular with several chunks; Megatron's is 1F1B."""
    if options.schedule:
        return options.schedule
    is_megatron = options.world == MEGATRON
    single, repeated = ("1f1b", "interleaved") if is_megatron else ("gpipe", "circular")
    return repeated if plan.virtual > 1 else single


def _layers(options: RunOptions) -> tuple[int, ...] | None:
    text = options.layers_per_stage
    return None if text is None else read_counts("--layers-per-stage", text)
