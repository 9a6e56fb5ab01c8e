"""Question: how long would a step take, and what would it wait for? An estimate, with a band.

The slowest stage of the pipeline sets the pace. One microbatch takes it

    layers · (products + memory passes + exchange + collectives)  +  head

and a step of m microbatches over p stages takes m of those, plus the time in which the pipeline
fills and drains, plus sums over replicas and the optimizer. What is hidden behind what:

FSDP gathers and gradient sums  0.4 of them behind dense-cfX, none behind the sparse strategies:
                                their custom calls and ragged exchanges block the stream (intercepts
                                over the batch of the throughput table of DeepSeek-V3 on 64 MI355X,
                                ROCm/rocm-blogs maxtext-dropless-moe)
data-parallel sums              behind one microbatch (Megatron); behind nothing (JAX)
context-parallel ring           behind the attention core
dispatch and combine            behind nothing, unless `Tuning.overlaps_exchange`: then behind the
                                products, while the pipeline is full
pipeline transfers              behind other chunks where stages have several, else behind nothing
launches                        behind device work

Rates are shares of peaks (`rates`); how far off the estimate was where it could be checked is its
band (`ground`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moeprof.errors import SpecError
from moeprof.projector.setting import Degrees, Real, Setting, degrees_of
from moeprof.projector.shares import stage_loads
from moeprof.projector.step_time.beside_layers import (
    fill_row,
    gather_row,
    head_weights,
    layer_weights,
    replica_row,
    transfer_row,
    update_row,
)
from moeprof.projector.step_time.flops import LayerKind, model_flops_per_token
from moeprof.projector.step_time.layer_time import head_parts, layer_parts, recomputed
from moeprof.projector.step_time.rates import (
    PLAIN,
    SYNCS,
    Band,
    Ground,
    TimeRow,
    Tuning,
    band_of,
    ground_of,
    total_s,
)


@dataclass(frozen=True)
class StepEstimate:
    """The time of one step; what would be measured is likely within ``band`` of it.

    ``rows`` add up to ``seconds``. ``bubble`` is the share of the pipeline's time in which an
    average stage has nothing to do. ``mfu`` relates useful operations, without recomputation and
    padding, to the device's bfloat16 peak.
    """

    setting: Setting
    tuning: Tuning
    rows: tuple[TimeRow, ...]
    seconds: float
    tokens_per_s_per_device: float
    mfu: float
    bubble: float

    @property
    def band(self) -> Band:
        """Multiples of ``seconds``."""
        return band_of(self.setting)


def estimate(setting: Setting, tuning: Tuning = PLAIN) -> StepEstimate:
    """The time of one step of a setting.

    Raises:
        SpecError: sequence or pdbs is not given, a format's peak is not known, or traffic leaves
            the fast domain of a device whose network is not known.
    """
    for name in ("sequence", "pdbs"):
        if getattr(setting, name) is None:
            raise SpecError(f"step time: expected {name}, found none. Give it.")
    degrees = degrees_of(setting)
    rows, bubble = _evaluated(setting, degrees, tuning)
    seconds = float(total_s(rows))
    if not np.isfinite(seconds):
        raise SpecError(
            f"step time: the plan sends data beyond {setting.hardware.domain} devices, and how "
            f"fast the network of {setting.hardware.name} is is not known. Use fewer devices."
        )
    speed = float(tokens_per_s_per_device(degrees, seconds))
    assert setting.sequence is not None
    useful = model_flops_per_token(setting.model, setting.sequence)
    return StepEstimate(
        setting,
        tuning,
        tuple(_as_number(row) for row in rows if np.any(row.seconds) or np.any(row.hidden_s)),
        seconds,
        speed,
        speed * useful / setting.hardware.bf16_flops_per_s,
        float(bubble),
    )


def step_seconds(setting: Setting, degrees: Degrees, tuning: Tuning = PLAIN) -> Real:
    """Seconds of a step for each of many plans; NaN where a link's speed is not known.

    ``setting`` gives what all plans share: its own plan and batch do not count.
    """
    return total_s(_evaluated(setting, degrees, tuning)[0])


def tokens_per_s_per_device(degrees: Degrees, seconds: Real) -> Real:
    """Tokens of a step over its seconds and the devices of a replica."""
    assert degrees.pdbs is not None
    assert degrees.sequence is not None
    devices = degrees.tensor * degrees.context * degrees.pipeline
    return degrees.pdbs * degrees.microbatches * degrees.sequence / (seconds * devices)


def _evaluated(
    setting: Setting, degrees: Degrees, tuning: Tuning
) -> tuple[tuple[TimeRow, ...], Real]:
    """All rows of a step, and the pipeline's bubble."""
    ground = ground_of(setting, degrees, tuning)
    load = stage_loads(setting, degrees)
    model = setting.model
    groups = [
        (
            load.dense,
            model.dense_layers,
            _layer_rows(ground, "dense") if model.dense_layers else [],
        ),
        (
            load.moe,
            model.moe_layers + model.mtp_layers,
            _layer_rows(ground, "moe") if model.moe_layers else [],
        ),
        (load.heads, 1 + model.mtp_layers, _head_rows(ground)),
    ]
    per_kind = sum(count * total_s(tuple(rows)) for count, _, rows in groups)
    all_stages = sum(count * total_s(tuple(rows)) for _, count, rows in groups)
    slowest = np.argmax(per_kind, axis=0)
    pace = _picked(per_kind, slowest)
    rounds = degrees.microbatches
    rows = [
        _scaled(row, _picked(count, slowest) * rounds)
        for count, _, found in groups
        for row in found
    ]
    rows = _overlapped(_merged(rows), degrees, tuning)
    rows += [fill_row(ground, all_stages - pace), transfer_row(ground)]
    busy = all_stages / np.asarray(degrees.pipeline) * rounds
    whole = pace * rounds + rows[-2].seconds + rows[-1].seconds
    for row in (replica_row(ground, load, pace), update_row(ground, load)):
        rows.append(_at(row, slowest))
    return tuple(rows), 1 - busy / whole


def _layer_rows(ground: Ground, kind: LayerKind) -> list[TimeRow]:
    parts = layer_parts(ground, kind)
    compute_s = total_s(tuple(part for part in parts if part.kind == "compute"))
    parts.append(gather_row(ground, layer_weights(ground, kind), compute_s))
    return [*parts, *host_row_list(ground, kind, total_s(tuple(parts)))]


def _head_rows(ground: Ground) -> list[TimeRow]:
    parts = head_parts(ground)
    return [*parts, gather_row(ground, head_weights(ground), parts[0].seconds)]


def _overlapped(rows: list[TimeRow], degrees: Degrees, tuning: Tuning) -> list[TimeRow]:
    """Exchange beside products, in the share of the microbatches that find the pipeline full."""
    if not tuning.overlaps_exchange:
        return rows
    rounds = np.asarray(degrees.microbatches * degrees.virtual, dtype=np.float64)
    full = np.maximum(1 - degrees.pipeline / rounds, 0.0)
    compute_s = total_s(tuple(row for row in rows if row.kind == "compute"))
    out = []
    for row in rows:
        if row.kind == "exchange":
            hidden = np.minimum(row.seconds, compute_s) * full
            row = replace(row, seconds=row.seconds - hidden, hidden_s=row.hidden_s + hidden)
        out.append(row)
    return out


def _merged(rows: list[TimeRow]) -> list[TimeRow]:
    """Rows of one name as one, in the order of first appearance."""
    found: dict[str, TimeRow] = {}
    for row in rows:
        known = found.get(row.name)
        if known is None:
            found[row.name] = row
            continue
        found[row.name] = replace(
            known, seconds=known.seconds + row.seconds, hidden_s=known.hidden_s + row.hidden_s
        )
    return list(found.values())


def _scaled(row: TimeRow, count: Real) -> TimeRow:
    return replace(row, seconds=row.seconds * count, hidden_s=row.hidden_s * count)


def _at(row: TimeRow, kind: Real) -> TimeRow:
    """A row that differs by kind of stage, for one kind per plan."""
    return replace(row, seconds=_picked(row.seconds, kind), hidden_s=_picked(row.hidden_s, kind))


def _picked(values: Real, kind: Real) -> Real:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim == 0:
        return found
    index = np.asarray(kind)[np.newaxis]
    shape = (found.shape[0], *index.shape[1:])
    picked: Real = np.take_along_axis(np.broadcast_to(found, shape), index, axis=0)[0]
    return picked


def _as_number(row: TimeRow) -> TimeRow:
    return replace(row, seconds=float(row.seconds), hidden_s=float(row.hidden_s))


# What a layer waits for its host. A JAX program is launched as a whole and its shapes are static:
# the host waits for nothing and its launches run ahead. PyTorch launches kernel by kernel, and a
# dynamic MoE layer waits for counts from the device (ROCm/rocm-blogs, primus-moe-package,
# "Sync-Free MoE"); each wait drains the queue, which takes about one trip: launch, kernel, copy,
# and the launches after it. How long a trip takes differs between hosts and no source states it:
# 0.1 ms and 10 µs per launch of about 60 kernels per MoE layer and pass (half for a dense one) are
# assumed.

SYNC_S = 1e-4
LAUNCH_S = 1e-5
_KERNELS = {"dense": 30, "moe": 60}


def host_row_list(ground: Ground, kind: LayerKind, device_s: Real) -> list[TimeRow]:
    """Waits and launches of one layer and microbatch; none in JAX."""
    if not ground.setting.program.launches_each_kernel:
        return []
    again = ground.again * recomputed(ground.setting.plan.remat, "norms")
    launches = _KERNELS[kind] * (3 + again) * LAUNCH_S
    rows = [
        TimeRow(
            "launches",
            "host",
            np.maximum(launches - device_s, 0.0),
            np.minimum(launches, device_s),
            f"{_KERNELS[kind]} kernels · passes · 10 µs, as far as the device is done before",
            "assumed",
            "low",
        )
    ]
    if kind == "moe":
        syncs = SYNCS[ground.tuning.sync_free]
        routes_again = ground.again * recomputed(ground.setting.plan.remat, "exchange")
        seconds = syncs * SYNC_S * (1 + routes_again)
        formula = f"{syncs} waits per MoE layer, forward and again · 0.1 ms"
        rows.append(
            TimeRow("waits for the device", "host", seconds, 0.0, formula, "assumed", "low")
        )
    return rows
