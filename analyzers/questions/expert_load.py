"""Question: how unevenly are tokens spread over experts, ranks and nodes, and what does it cost?

Returns: one row per MoE layer, in order.

Loads are (token, expert) pairs. Imbalance is the largest load over the mean, of each step and
layer, then the mean over the used steps: ranks meet in every step, so a hot spot costs as much
where it moves. The same of the sums over the steps stands beside it, where one that moves averages
out. An average over nodes can hide what happens inside one, so all three levels stand here.

The tax is what a step would gain at most with equal loads. Model: the grouped products of a rank
take time in proportion to its rows, each layer waits for its fullest rank, so in a step layer l
loses t · (max_l − mean_l) / Σ mean, t being the measured time of all grouped products per device
and step, forward, recompute and backward. That is an upper bound, as part of a product's time does
not depend on rows and other work may fill the wait. The lower bound is measured: how much longer
the products take on the slowest rank of a step than on the mean one, as if ranks met once a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moeprof.analyzers.costs.grouped import (
    CUSTOM_CALL,
    RAGGED,
    expert_products,
    grouped_products,
)
from moeprof.analyzers.dropped import COUNTED_FROM, DROPPED, NOT_DROPPED, dropped_pairs
from moeprof.analyzers.figures import maps
from moeprof.analyzers.load.balance import (
    StepLoads,
    busiest,
    dead_experts,
    imbalance,
    mean_of_steps,
    node_imbalance,
    recorded_drift,
    step_loads,
    tax,
)
from moeprof.analyzers.load.recorded import (
    LEFT_OUT,
    Recorded,
    is_left_out,
    named_steps,
    nodes_of_ranks,
    recorded,
)
from moeprof.analyzers.question import Group, Picture, Question, Taken
from moeprof.analyzers.window import window
from moeprof.answers.document import Document, headline
from moeprof.answers.values import is_number, written
from moeprof.columns.grouping import grouped, grouped_columns, places_in
from moeprof.columns.table import Table, isin
from moeprof.tables.analysis import Analysis, Metric, nothing
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

SCHEMA = Schema(
    "expert_load",
    (
        Column("layer", "int64", "", "decoder layer"),
        Column("busiest_expert", "int64", "", "expert that is busiest in most steps", "expert"),
        Column(
            "expert_imbalance",
            "float64",
            "ratio",
            "busiest expert of each step over the mean one, mean of the steps",
            "÷ mean",
        ),
        Column(
            "busiest_rank",
            "int64",
            "",
            "rank of the expert axis that is fullest in most steps; -1 where ranks are unknown",
            "rank",
        ),
        Column(
            "rank_imbalance",
            "float64",
            "ratio",
            "fullest rank of each step over the mean one, mean of the steps; none if unknown",
            "÷ mean (rank)",
        ),
        Column(
            "node_imbalance",
            "float64",
            "ratio",
            "the same of nodes; none if unknown or one node",
            "÷ mean (node)",
        ),
        Column("dead_experts", "int64", "count", "experts that no token chose in any step", "dead"),
        Column("tax_ns", "float64", "ns", "that a step would gain at most with equal loads", "tax"),
        Column("peak_overload", "float64", "ratio", "largest rank load over mean of any one step"),
        Column("peak_step", "int64", "", "that step; -1 where ranks are unknown"),
        Column("drift", "float64", "share", "assignments that moved, first to last recorded step"),
        Column("pairs", "float64", "pairs", "(token, expert) pairs of the global batch, per step"),
        Column("experts", "int64", "count", "routed experts"),
        Column("ranks", "int64", "count", "ranks of the expert axis"),
        Column("level", "text", "", "coarsest uneven level: node, rank, expert; none if even"),
        Column("busiest_expert_share", "float64", "share", "steps in which that expert is busiest"),
        Column("busiest_rank_share", "float64", "share", "steps in which that rank is fullest"),
        Column(
            "expert_imbalance_of_sums",
            "float64",
            "ratio",
            "busiest expert over the mean one, of the sums over the steps",
        ),
        Column("rank_imbalance_of_sums", "float64", "ratio", "the same of ranks"),
        Column("dropped_share", "float64", "share", "of its pairs no slot took; none if not known"),
        Column("dropped_share_at_least", "float64", "share", "the same, as far as known for sure"),
        Column("peak_dropped_share", "float64", "share", "the largest of any one step"),
        Column("peak_dropped_step", "int64", "", "that step; -1 where not known"),
    ),
)
ASKS = "How unevenly are tokens spread over experts, ranks and nodes?"
_SHARED_CORES = "virtual CPU devices share the machine's cores: the tax says nothing about another"
EVEN = 1.1
"""Up to this ratio a level is called even."""
NONE = (
    "none in this trace: the run recorded no routing; `moeprof capture --routing auto` finds the "
    "routers with no change of the model, or moeprof.routing.record(step, tokens_per_expert) in "
    "the training loop records it, without waiting for the device"
)


@once  # hints ask again
def expert_load(trace: Trace) -> Analysis:
    """Load of experts, ranks and nodes by layer, and the time that its unevenness costs."""
    known = recorded(trace)
    if not len(known.routing):
        none = (Metric("worst_rank_imbalance", None, "ratio"), Metric("layers", None, "count"))
        figures = (*none, *NOT_DROPPED)
        why = missing_tokens(trace)
        return nothing("expert_load", ASKS, SCHEMA, why, headline=figures, status="not_known")
    loads = step_loads(known.routing)
    nodes = nodes_of_ranks(trace, loads.by_rank.shape[2]) if loads.are_ranks_known else None
    product_ns, slowest_ns, why_not = _products(trace, known, loads)
    dropped = dropped_pairs(trace)
    taxes = tax(loads.by_rank, np.nan if product_ns is None else product_ns)
    table = Table(
        {
            "layer": loads.layers,
            **_experts(loads),
            **_ranks(loads),
            "node_imbalance": node_imbalance(loads, nodes),
            "dead_experts": dead_experts(known.routing),
            "tax_ns": taxes,
            "drift": recorded_drift(trace.table("routing"), loads.layers),
            "pairs": loads.by_expert.sum(axis=2).mean(axis=0),
            **dropped.by_layer(loads.layers),
        }
    ).assign(experts=loads.by_expert.shape[2], ranks=loads.by_rank.shape[2])
    table = SCHEMA.table(table.assign(level=_levels(table)).columns)
    most_ns = float(np.nansum(taxes))  # what is measured may be due to more than loads
    bounds = None if product_ns is None else (min(max(slowest_ns, 0.0), most_ns), most_ns)
    headline = (*_headline(table, loads, bounds), *dropped.headline)
    said = (
        *_story(table, len(loads.steps)),
        *(_nodes_note(nodes) if loads.are_ranks_known else ()),
        *why_not,
        *dropped.notes,
        *known.notes,
        *([_SHARED_CORES] if trace.meta.platform == "cpu" else ()),
    )
    return Analysis("expert_load", ASKS, headline, SCHEMA, table, said)


def missing_tokens(trace: Trace) -> str:
    """Why the tokens of each expert are not known, in a trace where there are none."""
    if is_left_out(trace):
        return f"none that can be used: {LEFT_OUT}"
    received = trace.table("received")
    if not len(received):
        return NONE
    return (
        "none in this trace: the run recorded the rows that each rank received "
        f"({named_steps(set(received['step'].tolist()))}), but the tokens of each expert, which "
        "process 0 writes into routing/p0.parquet, are not there"
    )


def _experts(loads: StepLoads) -> dict[str, np.ndarray]:
    found = busiest(loads.by_expert)
    return {
        "busiest_expert": found.place,
        "busiest_expert_share": found.share,
        "expert_imbalance": mean_of_steps(imbalance(loads.by_expert)),
        "expert_imbalance_of_sums": imbalance(loads.by_expert.sum(axis=0)),
    }


def _ranks(loads: StepLoads) -> dict[str, np.ndarray]:
    """None of it is known of a single rank, as all experts have where the run told no other."""
    if not loads.are_ranks_known:
        unknown = np.full(len(loads.layers), np.nan)
        nowhere = np.full(len(loads.layers), -1)
        return {
            "busiest_rank": nowhere,
            "busiest_rank_share": unknown,
            "rank_imbalance": unknown,
            "rank_imbalance_of_sums": unknown,
            "peak_overload": unknown,
            "peak_step": nowhere,
        }
    found, by_step = busiest(loads.by_rank), imbalance(loads.by_rank)
    peaks = np.nan_to_num(by_step).argmax(axis=0)
    return {
        "busiest_rank": found.place,
        "busiest_rank_share": found.share,
        "rank_imbalance": mean_of_steps(by_step),
        "rank_imbalance_of_sums": imbalance(loads.by_rank.sum(axis=0)),
        "peak_overload": by_step[peaks, np.arange(len(loads.layers))],
        "peak_step": loads.steps[peaks],
    }


_Times = tuple[float | None, float, tuple[str, ...]]


def _products(trace: Trace, known: Recorded, loads: StepLoads) -> _Times:
    """Time of the grouped products: mean device, slowest over the mean; or why not known, in ns."""
    if not loads.are_ranks_known:
        return _untold("which rank owns which expert was not recorded")
    if not known.is_of_window:
        return _untold("times and routing are of other steps")
    view, products = window(trace), grouped_products(trace)
    whole = int(products["self_ns"].sum())
    if not whole:
        return _untold("no grouped product in the trace")
    sites = expert_products(trace)
    follows = sites[isin(sites["form"], (CUSTOM_CALL, RAGGED))]
    is_scaled = places_in(products, follows, "module", "op") >= 0
    if int(products["self_ns"][is_scaled].sum()) * 2 < whole:
        return _untold("most products are of a fixed size, whatever the load")
    devices = grouped(products, "step", "host", "device")
    by_step = grouped_columns([products["step"][devices.first]])
    slowest = int(by_step.max(devices.sum(products["self_ns"])).sum())
    return whole / view.shares, (slowest - whole / view.devices) / max(view.steps, 1), ()


def _untold(why: str) -> _Times:
    return None, np.nan, (f"the tax is not known: {why}",)


def _levels(table: Table) -> list[str]:
    """The coarsest level of each layer that is uneven."""
    levels = ("node", "rank", "expert")
    ratios = np.column_stack([table[f"{level}_imbalance"] for level in levels]) > EVEN
    firsts = np.where(ratios.any(axis=1), ratios.argmax(axis=1), len(levels))
    return [(*levels, "none")[first] for first in firsts]


def _headline(
    table: Table, loads: StepLoads, bounds: tuple[float, float] | None
) -> tuple[Metric, ...]:
    worst, ranks = _worst(table), loads.are_ranks_known
    together = loads.by_rank.sum(axis=1, keepdims=True)  # all layers, [steps, 1, ranks]
    is_any = ranks and bool(together.any())
    overload = mean_of_steps(imbalance(together))[0]
    return (
        Metric("worst_expert_imbalance", _known(_largest(table["expert_imbalance"])), "ratio"),
        *_busiest_expert(table),
        Metric("worst_rank_imbalance", _known(worst["rank_imbalance"]), "ratio"),
        Metric("worst_layer", int(worst["layer"]), ""),
        Metric("worst_rank", int(worst["busiest_rank"]) if ranks else None, ""),
        Metric("worst_node_imbalance", _known(_largest(table["node_imbalance"])), "ratio"),
        Metric("cumulative_overload", _known(overload) if is_any else None, "ratio"),
        Metric("cumulative_rank", int(busiest(together).place[0]) if is_any else None, ""),
        Metric("dead_experts", int(table["dead_experts"].sum()), "count"),
        Metric("tax_least", None if bounds is None else bounds[0], "ns"),
        Metric("tax_most", None if bounds is None else bounds[1], "ns"),
        Metric("worst_rank_share", _known(worst["busiest_rank_share"]), "share"),
        *(
            Metric(sums, _known(_largest(table[sums])), "ratio")
            for sums in ("rank_imbalance_of_sums", "expert_imbalance_of_sums")
        ),
    )


def _busiest_expert(table: Table) -> tuple[Metric, ...]:
    """Where the expert is that stands above its mean the most; which, where it is always one."""
    row = table.dicts()[int(np.nan_to_num(table["expert_imbalance"]).argmax())]
    is_known = not np.isnan(row["expert_imbalance"])  # not where no token was routed
    expert = row["busiest_expert"] if row["busiest_expert_share"] == 1 and is_known else None
    return (
        Metric("worst_expert_layer", row["layer"] if is_known else None, ""),
        Metric("worst_expert", expert, ""),
    )


def _worst(table: Table) -> dict[str, Any]:
    """The layer whose ranks are most uneven, or its experts where ranks are not known."""
    level = "expert" if np.isnan(table["rank_imbalance"]).all() else "rank"
    return table.dicts()[int(np.nan_to_num(table[f"{level}_imbalance"]).argmax())]


def _largest(values: np.ndarray) -> float:
    """The largest that is known; NaN where none is."""
    return float(np.fmax.reduce(values))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _story(table: Table, steps: int) -> list[str]:
    """What to read from the worst layer."""
    if np.isnan(table["expert_imbalance"]).all():
        return ["no token was routed in these steps"]
    worst = _worst(table)
    expert = f"{worst['expert_imbalance']:.2f} × the mean expert"
    if np.isnan(worst["rank_imbalance"]):
        return [
            f"layer {worst['layer']}: {_who(worst, 'expert')} gets {expert}",
            "one expert rank was recorded: imbalance of ranks is not to be seen; "
            "moeprof.routing.record(…, expert_ranks=N) tells how many share the experts",
        ]
    said = [
        f"layer {worst['layer']}: {_who(worst, 'rank')} gets {worst['rank_imbalance']:.2f} × the "
        f"mean rank, {_who(worst, 'expert')} gets {expert}"
    ]
    if worst["busiest_rank_share"] < 1:
        said.append(
            f"rank {worst['busiest_rank']} is the fullest in "
            f"{format_percent(worst['busiest_rank_share'])} of {steps} steps; of the sums over the "
            f"steps the fullest rank has {worst['rank_imbalance_of_sums']:.2f} ×, the busiest "
            f"expert {worst['expert_imbalance_of_sums']:.2f} ×, as hot spots that move add up to "
            "even sums"
        )
    if worst["node_imbalance"] <= EVEN < worst["rank_imbalance"]:
        said.append(
            f"nodes are even ({worst['node_imbalance']:.2f}), ranks are not "
            f"({worst['rank_imbalance']:.2f}): the imbalance is inside the nodes"
        )
    return said


def _who(row: Mapping[str, Any], kind: str) -> str:
    """``rank 3``, or the one of each step where it is not always the same."""
    if row[f"busiest_{kind}_share"] < 1:
        return f"the busiest {kind} of each step"
    return f"{kind} {row[f'busiest_{kind}']}"


def _nodes_note(nodes: np.ndarray | None) -> tuple[str, ...]:
    if nodes is None:
        return ("which node each expert rank lies in is not known: no imbalance of nodes",)
    return ("all expert ranks are in one node",) if len(np.unique(nodes)) < 2 else ()


def sentence(document: Document) -> str:
    """The busiest expert and rank against the mean, and experts without a token."""
    found = headline(document, "expert_load")
    if found.get("worst_expert_imbalance") is None:
        return ""
    expert, layer = found.get("worst_expert"), found.get("worst_expert_layer")
    who = "the busiest expert of each step" if expert is None else f"expert {expert}"
    times = _times(found["worst_expert_imbalance"])
    told = f"In layer {layer} {who} gets {times} the tokens of the mean one"
    if found["worst_rank_imbalance"] is not None:
        share = found.get("worst_rank_share")
        is_one = not is_number(share) or share == 1
        rank = f"rank {found['worst_rank']}" if is_one else "the fullest rank of each step"
        told += (
            f"; ranks differ most in layer {found['worst_layer']}, where {rank} gets "
            f"{_times(found['worst_rank_imbalance'])} the mean"
        )
    dead = found["dead_experts"]
    return f"{told}; experts without a token: {written(dead, 'count') if dead else 'none'}."


def _times(ratio: object) -> str:
    return f"{ratio:.2f} ×" if isinstance(ratio, int | float) else "not known how many times"


QUESTION = Question(
    title="Expert load",
    group=Group.EXPERTS,
    place=1,
    asks=ASKS,
    needs=frozenset({Need.ROUTING}),
    schema=SCHEMA,
    run=expert_load,
    sentence=sentence,
    figures=(
        Picture(maps.EXPERTS, maps.expert_load),
        Picture(maps.RANKS, maps.rank_load),
    ),
    taken=(
        Taken(("tax_ns", "tax_least", "tax_most"), question="breakdown"),
        Taken(DROPPED, needs=COUNTED_FROM),
    ),
)
