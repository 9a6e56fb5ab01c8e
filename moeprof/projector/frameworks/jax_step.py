"""Question: what does one device of a JAX training step hold: given, at each moment, outside?

An `Account` lists live tensors per moment; to them come those of every step: gradients, what layers
saved, gathered weights, the optimizer's update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from moeprof.projector.breakdown import Peak, Row, StageBreakdown, product_row
from moeprof.projector.frameworks.live import Extent, Live, extent_of, item_bytes, live_row
from moeprof.projector.outside import outside_rows
from moeprof.projector.setting import Amount, Degrees, Setting
from moeprof.projector.shares import (
    microbatches_in_flight,
    runs_as_one_program,
    stage_counts,
)
from moeprof.projector.state import state_rows
from moeprof.specs.model import ModelSpec
from moeprof.specs.parameters import Parameter
from moeprof.specs.stages import StageLayers, stage_parameters

Lists: TypeAlias = Callable[[Setting], tuple[Live, ...]]
ListsByName: TypeAlias = Callable[[Setting], Mapping[str, tuple[Live, ...]]]


@dataclass(frozen=True)
class Batch:
    """Arrays of tokens that a step is given: of int32, each as long as the sequence or longer."""

    arrays: int
    more_positions: int
    source: str


@dataclass(frozen=True)
class Account:
    """What a program's account tells of its layers.

    ``moments``: the lists by moment, without what layers saved. ``kept_whole``: what a MoE and a
    dense layer keep where nothing is recomputed. ``kept_unrolled``: what is kept of a stack of one
    layer, where that is compiled without a loop; the compiler then finds recomputation to be what
    it has computed already, and keeps it. Empty where it may not. ``keeps_nothing``: whether
    nothing is kept of routed experts under a name of a rematerialisation policy. ``evaluation``:
    the lists by moment of a forward pass and its loss. ``counts_steps``: a step counter is kept.
    ``libraries``: the moments that come to ``moments`` where libraries compute all products; None
    where that is not known.
    """

    moments: ListsByName
    loss: Lists
    update: Lists
    always: Lists
    kept_whole: ListsByName
    kept_unrolled: ListsByName
    batch: Batch
    keeps_nothing: Callable[[Setting, str], bool]
    evaluation: ListsByName
    counts_steps: bool = False
    libraries: ListsByName | None = None


@functools.lru_cache(maxsize=512)
def held_by(model: ModelSpec, stage: StageLayers) -> tuple[Parameter, ...]:
    """The weights of a stage, listed once per model and stage."""
    return stage_parameters(model, stage)


def stage_breakdown(
    account: Account, setting: Setting, degrees: Degrees, stage: StageLayers
) -> StageBreakdown:
    """One stage of a pipeline, or the whole model, by a program's account.

    ``degrees`` may hold arrays, except for pipeline, virtual and microbatches.
    """
    held = held_by(setting.model, stage)
    extent = extent_of(setting, degrees, held)
    args = (*state_rows(setting, degrees, held), *_inputs(account, setting, degrees))
    apart = [live_row(one, extent, setting) for one in account.always(setting)]
    summed = (*_summed(setting, degrees, extent), *apart)  # the optimizer has the sum alone
    saved = _saved(account, setting, degrees, extent, stage)

    def moments(lists: ListsByName) -> list[Peak]:
        return [
            Peak(name, (*summed, *saved, *(live_row(one, extent, setting) for one in alive)))
            for name, alive in lists(setting).items()
            if _happens(name, stage)
        ]

    peaks = moments(account.moments)
    if stage.has_head:
        peaks.append(Peak("loss", (*_loss(account, setting, degrees, extent), *saved, *summed)))
    update = [live_row(one, extent, setting) for one in account.update(setting)]
    peaks.append(Peak("optimizer update", (*apart, *update)))
    libraries = tuple(moments(account.libraries)) if account.libraries else ()
    outside = outside_rows(setting, degrees)
    return StageBreakdown(stage.stage, args, tuple(peaks), outside, libraries)


def evaluation_peaks(
    account: Account, setting: Setting, degrees: Degrees, stage: StageLayers
) -> tuple[Peak, ...]:
    """The moments at which an evaluation of a batch of ``degrees`` may be fullest."""
    extent = extent_of(setting, degrees, held_by(setting.model, stage))
    around = _pipelined(setting, degrees, extent, stage)
    times = _times_of_loss(setting, degrees)
    return tuple(
        Peak(
            name,
            (
                *around,
                *(
                    live_row(one, extent, setting, times if name == "loss" and _grows(one) else 1)
                    for one in lists
                ),
            ),
        )
        for name, lists in account.evaluation(setting).items()
        if stage.has_head or name != "loss"
    )


def _happens(moment: str, stage: StageLayers) -> bool:
    """Whether a stage has layers of the kind that a moment belongs to."""
    if moment.startswith("backward of a MoE layer"):
        return stage.moe_layers + stage.mtp_layers > 0
    if moment == "backward of a dense layer":
        return stage.dense_layers > 0
    return True


def _inputs(account: Account, setting: Setting, degrees: Degrees) -> tuple[Row, ...]:
    """Arrays of a batch that a step is given."""
    batch, positions = account.batch, degrees.sequence
    dimensions: dict[str, Amount | None] = {
        "sequences": None if degrees.pdbs is None else degrees.pdbs * degrees.microbatches,
        "positions": None if positions is None else positions + batch.more_positions,
    }
    counter = Row(
        "step counter", "args", "optimizer", 4, "one int32", "optax.adamw's count", "exact"
    )
    row = product_row(
        "batch of tokens",
        batch.arrays,
        dimensions,
        item_bytes("i32", setting),
        pool="args",
        kind="inputs",
        source=batch.source,
        confidence="high",
    )
    return (row, counter) if account.counts_steps else (row,)


def _summed(setting: Setting, degrees: Degrees, extent: Extent) -> tuple[Row, ...]:
    """A second set of gradients, which adds up over microbatches while the first is computed."""
    if degrees.pipeline != 1 or int(degrees.microbatches) == 1:
        return ()
    source = "one set adds up while the other is computed"
    copy = Live("gradients summed over microbatches", "G:g", 1, source, "high", "grads")
    return (live_row(copy, extent, setting),)


def _saved(
    account: Account, setting: Setting, degrees: Degrees, extent: Extent, stage: StageLayers
) -> tuple[Row, ...]:
    in_flight = microbatches_in_flight(setting, degrees, stage.stage)
    rows = saved_rows(account, setting, extent, stage, in_flight)
    return (*rows, *_pipelined(setting, degrees, extent, stage))


def _pipelined(
    setting: Setting, degrees: Degrees, extent: Extent, stage: StageLayers
) -> tuple[Row, ...]:
    """What a pipeline keeps of its microbatches beside what layers save."""
    if degrees.pipeline == 1:
        return ()
    in_flight = microbatches_in_flight(setting, degrees, stage.stage)
    source = "AI-Hypercomputer/maxtext, layers/pipeline.py: state_io, shift, circular storage"
    pipeline, virtual = stage_counts(degrees)
    buffers: float = 3 + (in_flight if virtual > 1 else 2 * in_flight / pipeline)
    shifted = Live("pipeline buffers", "T d", buffers, source, "low")
    return (live_row(shifted, extent, setting),)


def _loss(account: Account, setting: Setting, degrees: Degrees, extent: Extent) -> tuple[Row, ...]:
    times = _times_of_loss(setting, degrees)
    return tuple(
        live_row(one, extent, setting, times if _grows(one) else 1) for one in account.loss(setting)
    )


def _times_of_loss(setting: Setting, degrees: Degrees) -> float:
    """Where one program runs all stages, the loss of all microbatches is split over them."""
    if not runs_as_one_program(setting) or degrees.pipeline == 1:
        return 1.0
    return int(degrees.microbatches) / stage_counts(degrees)[0]


def _grows(live: Live) -> bool:
    return "T" in live.symbols


# What a layer keeps from its forward pass for its backward pass. Under rematerialisation its input,
# and the activations that the policy names (`moeprof.specs.remat`) once per layer. Routed tensors
# are named like those of a dense feed-forward, so a policy that keeps ``mlpwo`` keeps whole
# dispatch buffers, worst case and all.

LAYER_INPUTS = "layer inputs"
_SOURCE = "AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy"
_ATTENTION_NAMES: Mapping[str, str] = {
    "query_proj": "q",
    "key_proj": "k",
    "value_proj": "v",
    "out_proj": "d",
    "context": "o",
}
_FEEDFORWARD_NAMES: Mapping[str, tuple[str, str, str]] = {
    # routed, shared, dense
    "mlpwi_0": ("f", "f_s", "f_d"),
    "mlpwi_1": ("f", "f_s", "f_d"),
    "mlpwo": ("d", "d", "d"),
}


def saved_rows(
    account: Account, setting: Setting, extent: Extent, stage: StageLayers, in_flight: float
) -> tuple[Row, ...]:
    """What all layers of a stage keep, for the microbatches in flight."""
    layers = {"moe": stage.moe_layers + stage.mtp_layers, "dense": stage.dense_layers}
    recomputed = _recomputed(account, setting, layers)
    rows = []
    if any(recomputed.values()):
        rows += _layer_inputs(setting, extent, sum(recomputed.values()), in_flight)
        rows += _named(account, setting, extent, recomputed, in_flight)
    whole, unrolled = account.kept_whole(setting), account.kept_unrolled(setting)
    for kind, number in layers.items():
        times = in_flight * (number - recomputed[kind])
        kept = unrolled[kind] if number == 1 and kind in unrolled else whole[kind]
        rows += [live_row(one, extent, setting, times) for one in kept if times]
    return tuple(rows)


def _recomputed(
    account: Account, setting: Setting, layers: Mapping[str, int]
) -> dict[str, int | float]:
    """Layers of each kind that are recomputed; a limit on their number is shared evenly."""
    if setting.plan.remat.text == "none":
        return dict.fromkeys(layers, 0)
    unrolled = account.kept_unrolled(setting)
    numbers: dict[str, int | float] = {
        kind: 0 if number == 1 and kind in unrolled else number for kind, number in layers.items()
    }
    total, limit = sum(layers.values()), setting.recomputed_layers
    if limit is None or limit >= total:
        return numbers
    return {kind: number * limit / total for kind, number in numbers.items()}


def _layer_inputs(setting: Setting, extent: Extent, layers: float, in_flight: float) -> list[Row]:
    if "activations" in setting.offload:
        return []
    dimensions: dict[str, Amount | None] = {
        "layers": layers,
        "T": extent["T"],
        "d_t": extent["d_t"],
    }
    return [
        product_row(
            LAYER_INPUTS,
            in_flight,
            dimensions,
            item_bytes("", setting),
            kind="activations",
            source=_SOURCE,
            confidence="high",
        )
    ]


def _named(
    account: Account,
    setting: Setting,
    extent: Extent,
    layers: Mapping[str, float],
    in_flight: float,
) -> list[Row]:
    rows = []
    for name in setting.plan.remat.saved_names:
        for where, number, shape in _places(account, setting, name, layers):
            live = Live(f"{name}, {where}", shape, 1, _SOURCE, "high", "activations")
            if number:
                rows.append(live_row(live, extent, setting, in_flight * number))
    return rows


def _places(
    account: Account, setting: Setting, name: str, layers: Mapping[str, float]
) -> list[tuple[str, float, str]]:
    """Where a name occurs: which part, in how many layers, with which shape."""
    dense, moe = layers["dense"], layers["moe"]
    if name in _ATTENTION_NAMES:
        return [("all layers", dense + moe, f"T {_ATTENTION_NAMES[name]}")]
    if name not in _FEEDFORWARD_NAMES:
        return []
    routed, shared, plain = _FEEDFORWARD_NAMES[name]
    places = []
    if name != "mlpwo":
        # What a dense feed-forward adds to the residual is no operand of any gradient.
        places.append(("dense layers", dense, f"T {plain}"))
        if setting.model.shared_width:
            places.append(("shared experts", moe, f"T {shared}"))
    is_dense = setting.strategy.kind == "dense"
    if not account.keeps_nothing(setting, name):
        places.append(("routed experts", moe, f"{'n' if is_dense else 'N'} {routed}"))
    return places
