"""Question: how many sequences does a device take, in how many microbatches, in which order?

Either pdbs (per device and microbatch) is said, or the global batch of a step, or both: then the
microbatches follow.
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.cli.memory_options import RunOptions
from moeprof.cli.memory_plan import MEGATRON
from moeprof.errors import SpecError
from moeprof.projector.batches import BOUND
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.plan_checks import Batch

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
