"""Question: how unevenly are tokens spread over experts, ranks and nodes, and what does it cost?

Reads:   routing, received, events, hlo_ops, devices, steps.
Returns: one row per MoE layer, in order.

Loads are (token, expert) pairs, mean over the used steps. Imbalance is the largest load over the
mean; an average over nodes can hide what happens inside one, so all three levels stand here.

The tax is what a step would gain at most with equal loads. Model: the grouped products of a rank
take time in proportion to its rows, each layer waits for its fullest rank, so layer l loses
t · (max_l − mean_l) / Σ mean, t being the measured time of all grouped products per device and
step, forward, recompute and backward. That is an upper bound, as part of a product's time does not
depend on rows and other work may fill the wait. The lower bound is measured: how much longer the
products take on the slowest rank than on the mean one, as if ranks met once per step.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import work_in_steps
from moeprof.analyzers.costs.grouped import CUSTOM_CALL, RAGGED, expert_products
from moeprof.analyzers.load.balance import Loads, drift, imbalance, overload, tax
from moeprof.analyzers.load.nodes import nodes_of_ranks
from moeprof.analyzers.load.recorded import Recorded, recorded
from moeprof.analyzers.window import window
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

SCHEMA = Schema(
    "expert_load",
    (
        Column("layer", "int64", "", "decoder layer"),
        Column("busiest_expert", "int64", "", "expert with the most tokens", "expert"),
        Column("expert_imbalance", "float64", "ratio", "its load over the mean", "÷ mean"),
        Column("busiest_rank", "int64", "", "rank of the expert axis with the most pairs", "rank"),
        Column("rank_imbalance", "float64", "ratio", "its load over the mean", "÷ mean (rank)"),
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
        Column("peak_step", "int64", "", "that step"),
        Column("drift", "float64", "share", "assignments that moved, first to last recorded step"),
        Column("pairs", "float64", "pairs", "(token, expert) pairs of the global batch, per step"),
        Column("experts", "int64", "count", "routed experts"),
        Column("ranks", "int64", "count", "ranks of the expert axis"),
        Column("level", "text", "", "coarsest uneven level: node, rank, expert; none if even"),
    ),
)
QUESTION = "How unevenly are tokens spread over experts, ranks and nodes?"
_PLACE = ["module", "op"]
EVEN = 1.1
"""Up to this ratio a level is called even."""
NONE = (
    "none in this trace: the run recorded no routing; moeprof.routing.record(step, "
    "tokens_per_expert) in the training loop does, without waiting for the device"
)


@functools.lru_cache(maxsize=2)  # hints ask again
def expert_load(trace: Trace) -> Analysis:
    """Load of experts, ranks and nodes by layer, and the time that its unevenness costs."""
    known = recorded(trace)
    if known.routing.empty:
        return Analysis(
            "expert_load",
            QUESTION,
            _headline(SCHEMA.frame(), None, None),
            SCHEMA,
            SCHEMA.frame(),
            (NONE,),
        )
    layers, by_expert, by_rank = loads(known.routing)
    nodes = nodes_of_ranks(trace, by_rank.shape[1])
    product_ns, slowest_ns, why_not = _products(trace, known)
    taxes = np.full(len(layers), np.nan) if product_ns is None else tax(by_rank, product_ns)
    per_node = _node_imbalance(by_rank, nodes)
    table = pd.DataFrame(
        {
            "layer": layers,
            "busiest_expert": by_expert.argmax(axis=1),
            "expert_imbalance": imbalance(by_expert),
            "busiest_rank": by_rank.argmax(axis=1),
            "rank_imbalance": imbalance(by_rank),
            "node_imbalance": per_node,
            "dead_experts": _dead(known.routing, layers),
            "tax_ns": taxes,
            **_peaks(known.routing, layers),
            "drift": _drift(trace.routing, layers),
            "pairs": by_expert.sum(axis=1),
            "experts": by_expert.shape[1],
            "ranks": by_rank.shape[1],
        }
    )
    table["level"] = _levels(table)
    table = SCHEMA.frame({name: table[name].to_numpy() for name in SCHEMA.names})
    bounds = None if product_ns is None else _bounds(float(np.nansum(taxes)), slowest_ns)
    headline = _headline(table, overload(by_rank), bounds)
    said = (*_story(table), *_nodes_note(nodes), *why_not, *known.notes, *_platform(trace))
    return Analysis("expert_load", QUESTION, headline, SCHEMA, table, said)


def loads(routing: pd.DataFrame) -> tuple[np.ndarray, Loads, Loads]:
    """Layers, and the mean pairs per step of [layers, experts] and [layers, ranks]."""
    steps = max(int(routing["step"].nunique()), 1)
    by_expert = routing.pivot_table(
        index="layer", columns="expert", values="tokens", aggfunc="sum", fill_value=0
    )
    by_rank = routing.pivot_table(
        index="layer", columns="rank", values="tokens", aggfunc="sum", fill_value=0
    )
    layers: np.ndarray = by_expert.index.to_numpy()
    return layers, _dense(by_expert) / steps, _dense(by_rank) / steps


def _dense(table: pd.DataFrame) -> Loads:
    """With a column for every number from 0, so that places are numbers."""
    whole = table.reindex(columns=range(int(max(table.columns)) + 1), fill_value=0)
    return whole.to_numpy(dtype="float64")


def _node_imbalance(by_rank: Loads, nodes: np.ndarray | None) -> Loads:
    """[layers]; NaN where nodes are unknown, or one node holds all ranks. Of ranks per node."""
    if nodes is None or len(np.unique(nodes)) < 2:
        return np.full(len(by_rank), np.nan)
    members = nodes == np.unique(nodes)[:, None]
    return imbalance(by_rank @ members.T / members.sum(axis=1))


def _dead(routing: pd.DataFrame, layers: np.ndarray) -> np.ndarray:
    tokens = routing.groupby(["layer", "expert"])["tokens"].sum()
    dead: np.ndarray = tokens.eq(0).groupby("layer").sum().reindex(layers).to_numpy()
    return dead


def _peaks(routing: pd.DataFrame, layers: np.ndarray) -> dict[str, np.ndarray]:
    """The largest load of a rank over the mean in any one step, and the step."""
    loads = routing.groupby(["layer", "step", "rank"])["tokens"].sum().groupby(["layer", "step"])
    ratio = loads.max() / loads.mean()  # NaN for a step without tokens
    at = ratio.fillna(0.0).groupby("layer").idxmax().reindex(layers)
    return {
        "peak_overload": ratio.loc[at].to_numpy(),
        "peak_step": np.array([step for _, step in at], dtype="int64"),
    }


def _drift(routing: pd.DataFrame, layers: np.ndarray) -> Loads:
    """From the first to the last of all recorded steps; NaN if there is but one."""
    steps = np.unique(routing["step"])
    if len(steps) < 2:
        return np.full(len(layers), np.nan)
    ends = (
        routing[routing["step"] == step]
        .pivot_table(index="layer", columns="expert", values="tokens", aggfunc="sum")
        .reindex(index=layers, columns=np.unique(routing["expert"]))
        .fillna(0)
        .to_numpy(dtype="float64")
        for step in (steps[0], steps[-1])
    )
    return drift(*ends)


def _products(trace: Trace, known: Recorded) -> tuple[float | None, float, tuple[str, ...]]:
    """Time of the grouped products: mean device, slowest over the mean; or why not known, in ns."""
    if not known.is_of_window:
        return None, np.nan, ("the tax is not known: times and routing are of other steps",)
    doubted = [check.check for check in trace.trust if "breakdown" in check.withholds]
    if doubted:
        return None, np.nan, (f"the tax is not known: times fail the check {doubted[0]}",)
    view, work = window(trace), work_in_steps(trace)
    products = work[work["component"] == "grouped_gemm"]
    whole = int(products["self_ns"].sum())
    if not whole:
        return None, np.nan, ("the tax is not known: no grouped product in the trace",)
    sites = expert_products(trace)
    follows = pd.MultiIndex.from_frame(sites[sites["form"].isin([CUSTOM_CALL, RAGGED])][_PLACE])
    is_scaled = pd.MultiIndex.from_frame(products[_PLACE].astype({"op": "str"})).isin(follows)
    scaled = int(products["self_ns"][is_scaled].sum())
    if scaled * 2 < whole:
        return (
            None,
            np.nan,
            ("the tax is not known: most products are of a fixed size, whatever the load",),
        )
    by_device = products.groupby(["host", "device"], observed=True)["self_ns"].sum()
    slowest = (int(by_device.max()) - whole / view.devices) / max(view.steps, 1)
    return whole / view.shares, slowest, ()


def _bounds(most_ns: float, slowest_ns: float) -> tuple[float, float]:
    """Least and most that a step would gain; what is measured may be due to more than loads."""
    return min(max(slowest_ns, 0.0), most_ns), most_ns


def _levels(table: pd.DataFrame) -> list[str]:
    """The coarsest level of each layer that is uneven."""
    ratios = table[["node_imbalance", "rank_imbalance", "expert_imbalance"]] > EVEN
    first = ratios.to_numpy().argmax(axis=1)
    names = np.array(["node", "rank", "expert"])[first]
    levels: list[str] = np.where(ratios.any(axis="columns"), names, "none").tolist()
    return levels


def _headline(
    table: pd.DataFrame, factors: tuple[Loads, Loads] | None, bounds: tuple[float, float] | None
) -> tuple[Metric, ...]:
    if factors is None:
        return (Metric("worst_rank_imbalance", None, "ratio"), Metric("layers", None, "count"))
    whole = factors[1]
    worst = table.iloc[int(table["rank_imbalance"].fillna(0).argmax())]
    rank = int(np.nanargmax(whole)) if not np.isnan(whole).all() else None
    nodes = table["node_imbalance"].max()
    return (
        Metric("worst_expert_imbalance", _known(table["expert_imbalance"].max()), "ratio"),
        Metric("worst_rank_imbalance", _known(worst["rank_imbalance"]), "ratio"),
        Metric("worst_layer", int(worst["layer"]), ""),
        Metric("worst_rank", int(worst["busiest_rank"]), ""),
        Metric("worst_node_imbalance", _known(nodes), "ratio"),
        Metric("cumulative_overload", None if rank is None else float(whole[rank]), "ratio"),
        Metric("cumulative_rank", rank, ""),
        Metric("dead_experts", int(table["dead_experts"].sum()), "count"),
        Metric("tax_least", None if bounds is None else bounds[0], "ns"),
        Metric("tax_most", None if bounds is None else bounds[1], "ns"),
    )


def _known(value: float) -> float | None:
    return float(value) if pd.notna(value) else None


def _story(table: pd.DataFrame) -> list[str]:
    """What to read from the worst layer."""
    if table["rank_imbalance"].isna().all():
        return ["no token was routed in these steps"]
    worst = table.iloc[int(table["rank_imbalance"].fillna(0).argmax())]
    said = []
    if int(worst["ranks"]) > 1:
        said.append(
            f"layer {worst['layer']}: rank {worst['busiest_rank']} gets "
            f"{worst['rank_imbalance']:.2f} × the mean rank, expert {worst['busiest_expert']} gets "
            f"{worst['expert_imbalance']:.2f} × the mean expert"
        )
    else:
        said.append("one expert rank was recorded: imbalance of ranks is not to be seen")
    if worst["node_imbalance"] <= EVEN < worst["rank_imbalance"]:
        said.append(
            f"nodes are even ({worst['node_imbalance']:.2f}), ranks are not "
            f"({worst['rank_imbalance']:.2f}): the imbalance is inside the nodes"
        )
    return said


def _nodes_note(nodes: np.ndarray | None) -> tuple[str, ...]:
    if nodes is None:
        return ("which node each expert rank lies in is not known: no imbalance of nodes",)
    return ("all expert ranks are in one node",) if len(np.unique(nodes)) < 2 else ()


def _platform(trace: Trace) -> tuple[str, ...]:
    if trace.meta.platform != "cpu":
        return ()
    return ("virtual CPU devices share the machine's cores: the tax says nothing about another",)
