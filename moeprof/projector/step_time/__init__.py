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

Rates are shares of peaks (`rates`); where they are from, and how far off the estimate was where it
could be checked, is its `Basis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

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
from moeprof.projector.step_time.layer_time import head_parts, host_row_list, layer_parts
from moeprof.projector.step_time.rates import (
    PLAIN,
    Ground,
    TimeRow,
    Tuning,
    ground_of,
    total_s,
)
from moeprof.specs.plan import ALL_AXES

# What an estimate is worth: where it is from, and how far off it may be.
#
# measured    the rates were fitted to published runs of the framework on the device
# calibrated  a run of the user's on the device was slower or faster than its estimate; estimates of
#             other plans are multiplied by as much
# assumed     neither: rates of kernels alone, or by analogy
#
# Bands are multiples of the estimated seconds, from the errors of benchmarks/step_time.py, rounded
# outwards to a tenth (`bands` there derives them again, a test compares). Measured: all 19 rows lie
# inside, of experts that are spread inside a fast domain and FSDP across; plans laid out otherwise
# were not measured and get the slow end of assumed. Assumed: of two families on NVIDIA no row was
# faster than estimated, and at least four in five of either lie inside. For other devices there are
# no rows: as far off either way. Calibrated: what one row of a framework and device says of
# another, all pairs of rows lie inside.

Source = Literal["measured", "calibrated", "assumed"]


class Band(NamedTuple):
    """Multiples of the estimated seconds."""

    low: float
    high: float


MEASURED = Band(0.9, 1.1)
ASSUMED = Band(1.0, 2.1)
UNCHECKED = Band(0.4, 2.1)
SAME_STRATEGY = Band(0.8, 1.2)
OTHER_STRATEGY = Band(0.6, 1.6)
OTHER_PLAN = Band(0.4, 2.4)
_CHECKED_VENDOR = "NVIDIA"


@dataclass(frozen=True)
class TimedRun:
    """A run whose step was timed: what ran where, how it was split, seconds of both.

    ``split`` are the axes of more than one device. ``steps`` is how many steps were measured,
    ``run`` where they were read from.
    """

    framework: str
    strategy: str
    remat: str
    hardware: str
    model: str
    split: tuple[str, ...]
    measured_s: float
    estimated_s: float
    run: str
    steps: int

    @property
    def factor(self) -> float:
        """Measured over estimated seconds."""
        return self.measured_s / self.estimated_s


class Basis(NamedTuple):
    """What an estimate stands on. ``factor`` is in its seconds; ``evidence`` is a clause on it."""

    source: Source
    band: Band
    factor: float
    evidence: str

    @property
    def ranks(self) -> bool:
        """Whether plans may be put in the order of their time."""
        return self.source != "assumed"


def basis_of(setting: Setting, runs: Sequence[TimedRun] = ()) -> Basis:
    """The basis of one setting's estimate; ``runs`` are the user's."""
    low, high = bands_of(setting, degrees_of(setting), runs)
    band = Band(float(low), float(high))
    where = f"{setting.program.title} on {setting.hardware.name}"
    run = nearest(setting, runs)
    if run is not None:
        evidence = f"{run.steps} steps of {run.run} took {run.factor:.2f} times their estimate"
        return Basis("calibrated", band, run.factor, evidence)
    if setting.hardware.key in setting.program.fitted_on:
        return Basis("measured", band, 1.0, f"rates were fitted to published runs of {where}")
    return Basis("assumed", band, 1.0, f"rates were fitted to no run of {where}")


def nearest(setting: Setting, runs: Sequence[TimedRun]) -> TimedRun | None:
    """The run of the setting's framework and device that is most alike, the last of several."""
    here = (setting.framework, setting.hardware.key)
    alike = [run for run in runs if (run.framework, run.hardware) == here]
    return max(reversed(alike), key=lambda run: _likeness(setting, run), default=None)


def _likeness(setting: Setting, run: TimedRun) -> tuple[bool, bool, bool]:
    return (
        run.model == setting.model.name,
        run.strategy == setting.strategy.name,
        run.remat == setting.plan.remat.text,
    )


def factor_of(setting: Setting, runs: Sequence[TimedRun]) -> float:
    """By how much the estimates of a setting's plans are multiplied."""
    run = nearest(setting, runs)
    return 1.0 if run is None else run.factor


def bands_of(
    setting: Setting, degrees: Degrees, runs: Sequence[TimedRun] = ()
) -> tuple[Real, Real]:
    """Low and high ends of one plan's band, or of many plans'."""
    run = nearest(setting, runs)
    if run is not None:
        is_model, *is_same = _likeness(setting, run)
        near = SAME_STRATEGY if all(is_same) else OTHER_STRATEGY
        is_split = [
            (np.asarray(getattr(degrees, axis)) > 1) == (axis in run.split) for axis in ALL_AXES
        ]
        is_near = np.logical_and.reduce(is_split) & is_model
        return _either(is_near, near, OTHER_PLAN)
    if setting.hardware.key in setting.program.fitted_on:
        expert = np.asarray(degrees.expert)
        beside = degrees.data * degrees.tensor * degrees.context * degrees.pipeline
        is_measured = (expert == setting.hardware.domain) & (np.asarray(beside) == 1)
        return _either(is_measured, MEASURED, Band(MEASURED.low, ASSUMED.high))
    is_checked = np.asarray(setting.hardware.vendor == _CHECKED_VENDOR)
    return _either(is_checked, ASSUMED, UNCHECKED)


def _either(choice: np.ndarray, one: Band, other: Band) -> tuple[Real, Real]:
    return np.where(choice, one.low, other.low), np.where(choice, one.high, other.high)


# The estimate.


@dataclass(frozen=True)
class StepEstimate:
    """The time of one step; what would be measured is likely within the band of its ``basis``.

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
    basis: Basis

    @property
    def seconds_range(self) -> tuple[float, float]:
        """Within which the step likely lies."""
        return self.seconds * self.basis.band.low, self.seconds * self.basis.band.high


def estimate(
    setting: Setting, tuning: Tuning = PLAIN, runs: Sequence[TimedRun] = ()
) -> StepEstimate:
    """The time of one step of a setting; ``runs`` are those whose steps were timed.

    Raises:
        SpecError: sequence or pdbs is not given, a format's peak is not known, or traffic leaves
            the fast domain of a device whose network is not known.
    """
    for name in ("sequence", "pdbs"):
        if getattr(setting, name) is None:
            raise SpecError(f"step time: expected {name}, found none. Give it.")
    degrees = degrees_of(setting)
    basis = basis_of(setting, runs)
    rows, bubble = _evaluated(setting, degrees, tuning)
    rows = tuple(_scaled(row, basis.factor) for row in rows)
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
        basis,
    )


def step_seconds(
    setting: Setting, degrees: Degrees, tuning: Tuning = PLAIN, runs: Sequence[TimedRun] = ()
) -> Real:
    """Seconds of a step for each of many plans; NaN where a link's speed is not known.

    ``setting`` gives what all plans share: its own plan and batch do not count.
    """
    return total_s(_evaluated(setting, degrees, tuning)[0]) * factor_of(setting, runs)


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
