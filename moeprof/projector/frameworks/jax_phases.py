"""Question: what does a JAX run hold beside its step: at start, restore, evaluation, checkpoint?

Device and host. Start: XLA makes the state by one program whose results it is; random numbers are
made in place. Evaluation: a forward pass while the optimizer's state stays. Restore and checkpoint
are Orbax's (google/orbax, checkpoint/_src/serialization):

* a restore reads shards to host memory, as many at once as ``restore_concurrent_gb`` allows, and
  puts each on its device (serialization.py, _read_array_index_and_device_put);
* a save copies all of a host's shards to its memory before it returns (replica_slices.py,
  transfer_arrays_to_host), and writes as many at once as ``save_concurrent_gb`` allows. Arrays that
  several devices hold are cut on the devices first, one slice per replica. The next save waits for
  the last one (checkpoint_manager.py, save), so there are never two.

What of that takes memory was measured with 8 GiB of arrays on two H200
(benchmarks/results/gpu_checkpoint.json).
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from moeprof.projector.breakdown import (
    Confidence,
    Peak,
    Phase,
    Row,
    StageBreakdown,
    total,
)
from moeprof.projector.frameworks.jax_step import (
    LAYER_INPUTS,
    Account,
    held_by,
    saved_rows,
)
from moeprof.projector.frameworks.live import extent_of
from moeprof.projector.setting import (
    Amount,
    Count,
    Degrees,
    Setting,
    smaller,
    whole,
)
from moeprof.projector.shares import microbatches_in_flight
from moeprof.projector.state import dimension_divisors, offloaded_rows, state_rows
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import FULL, Remat
from moeprof.specs.stages import StageLayers
from moeprof.specs.strategy import Strategy

CONCURRENT_BYTES = 96 * 10**9
"""Orbax's ``save_concurrent_gb`` and ``restore_concurrent_gb``, of a process, and MaxText's
``checkpoint_storage_concurrent_gb``."""
DECODED_SHARE = 0.66
"""Of the shards being read: chunks that are decoded on the way to them, 0.34 and 0.66 measured."""
_COMPILED = "programs compiled for H100: benchmarks/results/memory_phases.jsonl"
_MEASURED = "benchmarks/results/gpu_checkpoint.json"
_READ = "google/orbax, serialization.py: reserved_bytes of restore_concurrent_gb"
_COPIED = "google/orbax, replica_slices.py: transfer_arrays_to_host"


def start(step: StageBreakdown, host: tuple[Row, ...]) -> Phase:
    """The program that makes the state."""
    made = Row(
        "random numbers",
        "temp",
        "temporaries",
        0,
        "0: made in the arrays of the state; 3 to 33 kB of other buffers were laid out",
        _COMPILED,
        "high",
    )
    return Phase("start", state_of(step), (Peak("state", (made,)),), step.outside, host)


def restore(
    setting: Setting,
    degrees: Degrees,
    stage: StageLayers,
    step: StageBreakdown,
    made_too: str = "",
    *,
    with_host: bool = True,
) -> Phase:
    """Reading a checkpoint; ``made_too`` is the source of a state that is made beside it."""
    state = state_of(step)
    peaks: tuple[Peak, ...] = ()
    copies = 1
    if made_too:
        copies = 2
        more = tuple(
            replace(row, name=f"made beside the restored: {row.name}", pool="temp", source=made_too)
            for row in state
        )
        peaks = (Peak("a state made anew beside the restored one", more),)
    if not with_host:
        return Phase("restore", state, peaks, step.outside)
    shards = _of_host(setting, degrees, stage)
    read = smaller(shards, CONCURRENT_BYTES - 1)
    limit = f"{CONCURRENT_BYTES // 10**9} GB at once"
    rows = (
        *_offloaded(setting, degrees, stage, copies),
        host_row("shards being read", read, f"a host's shards, at most {limit}", _READ, "high"),
        host_row(
            "chunks being decoded",
            whole(read * DECODED_SHARE),
            f"{DECODED_SHARE:g} · shards being read, the larger of two measured",
            _MEASURED,
            "low",
        ),
    )
    return Phase("restore", state, peaks, step.outside, rows)


def checkpoint(
    setting: Setting,
    degrees: Degrees,
    stage: StageLayers,
    step: StageBreakdown,
    *,
    with_host: bool = True,
) -> Phase:
    """Writing a checkpoint: a copy of a host's shards, and what is being written of them."""
    held, of_stage = held_by(setting.model, stage), _devices(degrees) // degrees.pipeline
    sizes = _whole_bytes(setting, stage, setting.offload)
    cut: Amount = 0
    for parameter, size in zip(held, sizes, strict=True):
        replicas = of_stage // math.prod(dimension_divisors(parameter, degrees))
        cut = cut + size * smaller(replicas - 1, 1)
    cut = cut // of_stage
    slices = Row(
        "slices of arrays that several devices hold",
        "temp",
        "temporaries",
        cut,
        "bytes of replicated arrays / devices of a stage, one slice per replica",
        f"{_COPIED}; 3.5 of 4 GiB measured, {_MEASURED}",
        "medium",
    )
    copy = (Peak("copy", (slices,)),)
    if not with_host:
        return Phase("checkpoint", state_of(step), copy, step.outside)
    shards = _of_host(setting, degrees, stage)
    written = smaller(shards, CONCURRENT_BYTES - 1)
    limit = f"{CONCURRENT_BYTES // 10**9} GB at once"
    rows = (
        *_offloaded(setting, degrees, stage, 1),
        host_row(
            "shards copied from the devices",
            shards,
            "bytes of weights and optimizer / hosts",
            _COPIED,
            "high",
        ),
        host_row(
            "shards being written",
            written,
            f"encoded before they are written: a host's shards, at most {limit}",
            f"8 of 8 GiB measured, {_MEASURED}",
            "medium",
        ),
    )
    return Phase("checkpoint", state_of(step), copy, step.outside, rows)


def step_on_host(
    account: Account, setting: Setting, degrees: Degrees, stage: StageLayers
) -> tuple[Row, ...]:
    """Offloaded optimizer state and activations of a host's devices."""
    names = setting.plan.remat.offloaded_names
    has_inputs, devices = "activations" in setting.offload, per_host(setting, degrees)
    rows = _offloaded(setting, degrees, stage, 1)
    if not has_inputs and not names:
        return tuple(rows)
    policy = Remat(f"save:{','.join(names)}") if names else FULL
    kept = replace(setting, offload=frozenset(), plan=replace(setting.plan, remat=policy))
    extent = extent_of(setting, degrees, held_by(setting.model, stage))
    in_flight = microbatches_in_flight(setting, degrees, stage.stage)
    for row in saved_rows(account, kept, extent, stage, in_flight):
        if has_inputs or row.name != LAYER_INPUTS:
            rows.append(_times(row, devices))
    return tuple(rows)


def state_on_host(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Of what a step keeps on the host, the state: activations are of a step alone."""
    return tuple(row for row in rows if row.kind == "optimizer")


def state_of(step: StageBreakdown) -> tuple[Row, ...]:
    """What is kept from step to step: not the batch."""
    return tuple(row for row in step.args if row.kind != "inputs")


def per_host(setting: Setting, degrees: Degrees) -> Amount:
    """Devices of the run on one host."""
    return smaller(_devices(degrees), setting.hardware.host_devices)


def _devices(degrees: Degrees) -> Count:
    others = degrees.tensor * degrees.context * degrees.pipeline
    return degrees.data * degrees.fsdp * degrees.expert * others


def _of_host(setting: Setting, degrees: Degrees, stage: StageLayers) -> Amount:
    """Bytes of weights and optimizer that one host reads or writes; each replica a part.

    Where a host has devices of several stages, all are taken to be like this one.
    """
    size = sum(_whole_bytes(setting, stage, frozenset()))
    of_stage = _devices(degrees) // degrees.pipeline
    return -(-size * per_host(setting, degrees) // of_stage)


def _offloaded(setting: Setting, degrees: Degrees, stage: StageLayers, copies: int) -> list[Row]:
    """Optimizer state in the host's memory."""
    held, devices = held_by(setting.model, stage), per_host(setting, degrees)
    return [_times(row, devices * copies) for row in offloaded_rows(setting, degrees, held)]


def _times(row: Row, number: Amount) -> Row:
    """A device's row for a host."""
    size = None if row.size_bytes is None else whole(row.size_bytes * number)
    formula = row.formula if row.size_bytes is None else f"{row.formula}; × {number} on a host"
    name = f"{row.name}, offloaded"
    return replace(row, name=name, pool="host", size_bytes=size, formula=formula)


def host_row(name: str, size: Amount, formula: str, source: str, confidence: Confidence) -> Row:
    """Bytes of one host."""
    return Row(name, "host", "host copies", size, formula, source, confidence)


_ALONE = Degrees(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def _whole_bytes(setting: Setting, stage: StageLayers, offload: frozenset[str]) -> tuple[int, ...]:
    """Bytes of each weight of a stage, with what the optimizer keeps of it on no host."""
    alike = replace(
        setting,
        plan=ParallelPlan(),
        strategy=Strategy("sparse-gmm"),
        offload=offload,
        microbatches=1,
        pdbs=1,
        sequence=1,
        eval_pdbs=None,
        host_memory_bytes=None,
        ragged_buffer_factor=None,
        overload=None,
    )
    return _kept_bytes(alike, stage)


@functools.lru_cache(maxsize=256)
def _kept_bytes(setting: Setting, stage: StageLayers) -> tuple[int, ...]:
    rows = (state_rows(setting, _ALONE, (each,)) for each in held_by(setting.model, stage))
    return tuple(int(total(found) or 0) for found in rows)
