"""Question: how far is a load from being spread evenly, over all and in each recorded step?

Loads are tables of counts, int or float, [layers, places], where a place is an expert, a rank or a
node; where it says so, [steps, layers, places]. Balanced means that every place of a layer has the
layer's mean. A layer waits for its fullest place in every step anew, so the largest load of a step
is taken first and the mean over steps last: a hot spot that moves from step to step has even sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.load.recorded import recorded
from moeprof.columns.grouping import Int64s, grouped
from moeprof.columns.table import Table, stacked
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

Loads = npt.NDArray[np.float64]


def imbalance(loads: Loads) -> Loads:
    """Largest load over the mean, [layers], or [steps, layers] by step; NaN without load."""
    means = loads.mean(axis=-1)
    largest: Loads = np.divide(
        loads.max(axis=-1), means, out=np.full(means.shape, np.nan), where=means > 0
    )
    return largest


def overload(loads: Loads) -> tuple[Loads, Loads]:
    """Overload factors: of each place in each layer [layers, places], and over all layers [places].

    The first is the load over the layer's mean; the second the same of the sums over layers, which
    is what memory that is kept for every layer grows by.
    """
    means = loads.mean(axis=1, keepdims=True)
    by_layer: Loads = np.divide(loads, means, out=np.full(loads.shape, np.nan), where=means > 0)
    sums = loads.sum(axis=0)
    whole: Loads = sums / sums.mean() if sums.sum() > 0 else np.full(loads.shape[1], np.nan)
    return by_layer, whole


def drift(first: Loads, last: Loads) -> Loads:
    """Share of the assignments that would have to move to turn one load into the other, [layers].

    Half the sum of the differences of the places' shares; NaN where a layer has no load.
    """
    shares = [_shares(loads) for loads in (first, last)]
    moved: Loads = np.abs(shares[0] - shares[1]).sum(axis=1) / 2
    return moved


def _shares(loads: Loads) -> Loads:
    sums = loads.sum(axis=1, keepdims=True)
    shares: Loads = np.divide(loads, sums, out=np.full(loads.shape, np.nan), where=sums > 0)
    return shares


def tax(rank_loads: Loads, product_ns: float) -> Loads:
    """Time that each layer would gain at most with equal loads, in ns, [layers].

    The products of a rank take time in proportion to its rows, and a layer ends with its fullest
    rank. `product_ns` is what the products of all layers take on the mean rank, so a row costs
    product_ns / Σ_l mean_l, and layer l loses (max_l − mean_l) of these. Of [steps, layers, places]
    that is the mean over the steps.
    """
    stacked = rank_loads if rank_loads.ndim == 3 else rank_loads[None]
    means = stacked.mean(axis=2)
    whole = float(means.sum(axis=1).mean())
    lost = (stacked.max(axis=2) - means).mean(axis=0)
    gain: Loads = lost * (product_ns / whole if whole > 0 else np.nan)
    return gain


_TELLING = 0.1
"""Share of a map's largest cell above which a step that is more uneven deserves a word."""


@dataclass(frozen=True)
class StepLoads:
    """(token, expert) pairs of each recorded step and layer.

    ``by_expert`` is [steps, layers, experts], ``by_rank`` [steps, layers, ranks]; ``steps`` and
    ``layers`` are the numbers of their first two axes, in order. A rank that none of the rows
    names has no load.
    """

    steps: Int64s
    layers: Int64s
    by_expert: Loads
    by_rank: Loads

    @property
    def are_ranks_known(self) -> bool:
        """Whether the run told which rank owns which expert: one rank alone tells nothing."""
        return int(self.by_rank.shape[2]) > 1


def step_loads(routing: Table) -> StepLoads:
    """The rows of `ROUTING`, of which there is at least one, as arrays."""
    steps, step = np.unique(routing["step"], return_inverse=True)
    layers, layer = np.unique(routing["layer"], return_inverse=True)
    tokens = routing["tokens"].astype(np.float64)
    expert, rank = routing["expert"], routing["rank"]
    ranks = rank if rank.min() >= 0 else np.zeros_like(rank)  # -1 is one that nobody knows
    by_expert, by_rank = (
        _dense((step, layer, place), tokens, (len(steps), len(layers))) for place in (expert, ranks)
    )
    return StepLoads(steps, layers, by_expert, by_rank)


def _dense(at: tuple[Int64s, Int64s, Int64s], tokens: Loads, shape: tuple[int, int]) -> Loads:
    """With a place for every number from 0, so that places are numbers."""
    found = np.zeros((*shape, int(at[2].max()) + 1))
    np.add.at(found, at, tokens)
    return found


@dataclass(frozen=True)
class Busiest:
    """Of each layer: the place that is fullest in most steps, and in which share of them it is.

    Of places that are fullest in as many steps it is the one with most pairs over all of them.
    """

    place: Int64s
    share: Loads


def busiest(loads: Loads) -> Busiest:
    """`Busiest` of loads [steps, layers, places]; steps without a pair do not count."""
    fullest = loads.max(axis=2, keepdims=True)
    times = ((loads == fullest) & (fullest > 0)).sum(axis=0)  # [layers, places]
    most = times.max(axis=1, keepdims=True)
    place = np.where(times == most, loads.sum(axis=0), -1.0).argmax(axis=1)
    counted = np.maximum((fullest[:, :, 0] > 0).sum(axis=0), 1)
    return Busiest(place, most[:, 0] / counted)


def mean_of_steps(by_step: Loads) -> Loads:
    """Mean over the first axis of what is known in each step; NaN where it is known in none."""
    known = ~np.isnan(by_step)
    counts = known.sum(axis=0)
    sums = np.where(known, by_step, 0.0).sum(axis=0)
    mean: Loads = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return mean


def hidden_by_the_mean(loads: Loads, kind: str) -> tuple[str, ...]:
    """What to say beside means over steps, where a step on its own is clearly more uneven.

    ``loads`` are [steps, layers, places], ``kind`` is what a place is.
    """
    of_steps, of_mean = mean_of_steps(imbalance(loads)), imbalance(loads.mean(axis=0))
    hidden = np.nan_to_num(of_steps - of_mean)
    layer = int(hidden.argmax())
    if not hidden[layer] > _TELLING * of_mean[layer]:
        return ()
    return (
        f"means over {len(loads)} steps: in a step of its own the busiest {kind} of a layer gets "
        f"{of_steps[layer]:.2f} × the mean where the map shows {of_mean[layer]:.2f} ×, as hot "
        "spots move (expert_load)",
    )


WORST = -1
"""In the place of a layer: the worst of all layers in that step."""

BY_STEP = Schema(
    "imbalance_by_step",
    (
        Column("layer", "int64", "", "decoder layer; -1 for the worst of all in that step"),
        Column("step", "int64", "", "step whose routing was recorded"),
        Column("imbalance", "float64", "ratio", "busiest expert over the mean of all"),
    ),
)


def imbalance_by_step(trace: Trace) -> Table:
    """`BY_STEP` by layer, the worst first; without a row for a layer that got no token.

    Empty where nothing was recorded, or not for the steps whose times are shown.
    """
    known = recorded(trace)
    if not len(known.routing) or not known.is_of_window:
        return BY_STEP.table()
    of_layer = grouped(known.routing, "layer", "step")
    loads = _by_place(known.routing, of_layer.of, len(of_layer))
    places = known.routing.select("layer", "step")[of_layer.first]
    layers = places.assign(imbalance=imbalance(loads))
    layers = layers[~np.isnan(layers["imbalance"])]
    of_step = grouped(layers, "step")
    steps = layers.select("layer", "step")[of_step.first]
    worst = steps.assign(layer=WORST, imbalance=of_step.max(layers["imbalance"]))
    return BY_STEP.table(stacked([worst, layers]).columns)


def _by_place(routing: Table, row: Int64s, rows: int) -> Loads:
    """Tokens of the experts that any row of `routing` names, in order, by `row` of the result."""
    experts, expert = np.unique(routing["expert"], return_inverse=True)
    found = np.zeros((rows, len(experts)))
    np.add.at(found, (row, expert), routing["tokens"])
    return found


def node_imbalance(loads: StepLoads, nodes: Int64s | None) -> Loads:
    """[layers]; NaN where nodes are unknown, or one node holds all ranks. Of ranks per node."""
    if nodes is None or len(np.unique(nodes)) < 2:
        return np.full(len(loads.layers), np.nan)
    members = nodes == np.unique(nodes)[:, None]
    return mean_of_steps(imbalance(loads.by_rank @ members.T / members.sum(axis=1)))


def dead_experts(routing: Table) -> Int64s:
    """Experts of each layer that no token chose in any step, [layers], in order."""
    of_expert = grouped(routing, "layer", "expert")
    is_dead = of_expert.sum(routing["tokens"]) == 0
    dead: Int64s = grouped(routing.select("layer")[of_expert.first], "layer").sum(is_dead)
    return dead


def recorded_drift(routing: Table, layers: Int64s) -> Loads:
    """`drift` from the first to the last of all recorded steps; NaN if there is but one.

    Of these `layers`, each of which has a row; one without a row in a step has no load in it.
    """
    steps = np.unique(routing["step"])
    if len(steps) < 2:
        return np.full(len(layers), np.nan)
    known, layer = np.unique(routing["layer"], return_inverse=True)
    counts = (np.where(routing["step"] == step, routing["tokens"], 0) for step in steps[[0, -1]])
    ends = (_by_place(routing.assign(tokens=count), layer, len(known)) for count in counts)
    return drift(*ends)[np.searchsorted(known, layers)]
