"""Laws of figures: shares are within their whole, parts named, sizes known, tokens counted once.

A share outside of 0 to 1 compares figures of which one is false, whatever the input says of itself.
Parts of the step are named where they are neither guessed nor unknown. An element type that is
newer than the table of types has no size: what an op with one moves is not known, and no sum with
it is. Every expert of every layer and step was counted once, and nobody received more: a router
sends the same number of (token, expert) pairs through every layer of a step. Counts that differ are
no fault by themselves, as a capacity may have cut some off before they were counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.costs.table import costs_of
from moeprof.analyzers.load.recorded import is_left_out, named_steps, recorded
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.columns.grouping import grouped, places_in, spread
from moeprof.columns.table import Table
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import has_unknown_type, unknown_types
from moeprof.tables.analysis import Analysis
from moeprof.tables.law import Law, Need, Scope
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

_UNBOUNDED = ("waited_for_share",)  # of several calls, in which others wait at the same time
_ROUNDING = 1e-6
_IN_TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "hints": {"gain_share": ("gain_ns", "gain_share", "largest_gain")},
    "breakdown": {"share": ("share",)},
    "ops": {"share": ("share", "shown_share")},
    "step_time": {"busy_share": ("busy_share",)},
}
"""Columns that are parts of a whole, with the figures that fall with one. Others compare with a
device's peak or with another rate, and may be more."""


class _Found(NamedTuple):
    """Shares of one name, and the figures that are not shown where one of them cannot be."""

    question: str
    name: str
    values: tuple[float, ...]
    figures: tuple[str, ...]

    @property
    def wrong(self) -> list[float]:
        """Those that cannot be."""
        return [v for v in self.values if not -_ROUNDING <= v <= 1 + _ROUNDING]


def shares(findings: Mapping[str, Analysis]) -> Law:
    """Whether every share of a whole lies between 0 and 1; one that does not is withheld."""
    found = [one for analysis in findings.values() for one in _shares(analysis) if one.values]
    if not found:
        return Law("shares", "unchecked", "no share of a whole is known")
    wrong = [one for one in found if one.wrong]
    compared = (len(found), len(found) - len(wrong), "shares")
    if not wrong:
        detail = f"{len(found)} shares lie between none and all of their whole"
        return Law("shares", "ok", detail, (), *compared)
    first = wrong[0]
    told = f"{first.name} of {first.question} is {first.wrong[0]:.1%}"
    scopes = tuple(Scope(one.question, one.figures) for one in wrong)
    detail = f"{len(wrong)} share(s) cannot be, first: {told}"
    return Law("shares", "fail", detail, (), *compared, scopes)


def _shares(analysis: Analysis) -> Iterator[_Found]:
    for metric in analysis.headline:
        is_share = metric.unit == "share" and metric.metric not in _UNBOUNDED
        if is_share and isinstance(metric.value, int | float):
            yield _Found(analysis.name, metric.metric, (float(metric.value),), (metric.metric,))
    for column, figures in _IN_TABLES.get(analysis.name, {}).items():
        values = analysis.cells[column] if column in analysis.cells else np.zeros(0)
        known = values[~np.isnan(values)].tolist()
        yield _Found(analysis.name, column, tuple(map(float, known)), figures)


_NAMES = "names"
_MOST_UNSURE = 0.05
"""Of op time: what may be guessed or unknown before a comparison of parts is one of guesses."""

_SHARES = (
    *("named_by_program_share", "named_by_structure_share"),
    *("guessed_share", "unattributed_share"),
)


def names(trace: Trace) -> Law:
    """Whether at most a twentieth of op time has a part that is a guess, or none."""
    known = {metric.metric: metric.value for metric in breakdown(trace).headline}
    shares = [known.get(name) for name in _SHARES]
    if any(not isinstance(share, float) for share in shares):
        return Law(_NAMES, "unchecked", "no device work to name")
    program, structure, guessed, none = (float(str(share)) for share in shares)
    detail = (
        f"by the program {format_percent(program)}, by structure "
        f"{format_percent(structure)}, guessed {format_percent(guessed)}, "
        f"not known {format_percent(none)}"
    )
    by_rules = known.get("named_by_rules_share")
    if isinstance(by_rules, float):
        detail = f"by your rules {format_percent(by_rules)}, {detail}"
    detail = f"named {detail}"
    unsure = guessed + none
    compared = (_MOST_UNSURE, unsure, "share guessed or not known at most")
    if unsure <= _MOST_UNSURE:
        return Law(_NAMES, "ok", detail, (), *compared)
    told = {"is not known": none, "is guessed": guessed}
    lead = " and ".join(f"{format_percent(s)} of op time {what}" for what, s in told.items() if s)
    detail = f"{lead}: {detail}; `--names FILE` names it"
    return Law(_NAMES, "warn", detail, (), *compared)


_BYTES = "bytes"
_OF_OPS = (
    ("roofline", ("bytes", "intensity", "tb_per_s", "bound", "memory_share", "roofline_ns")),
    (
        "collectives",
        ("bytes", "bound_bytes", "algorithm_gb_per_s", "bus_gb_per_s", "moved_ns", "link_share"),
    ),
    (
        "dispatch_combine",
        ("bytes", "bound_bytes", "algorithm_gb_per_s", "bus_gb_per_s", "link_share"),
    ),
)
_MOST_NAMED = 3


def bytes_known(trace: Trace) -> Law:
    """Whether bytes are known of every op that ran; those of which they are not are named."""
    ops = trace.table("hlo_ops")
    if not len(ops):
        return Law(_BYTES, "unchecked", "the profile keeps no program, so no sizes")
    shapes = dict.fromkeys(ops["shape"][ops["size_bytes"] < 0])  # no more than a look at a column
    if not any(map(has_unknown_type, shapes)):
        return Law(_BYTES, "ok", "the size of every element type is known", unit="ops")
    costs, programs = costs_of(trace), programs_of(trace)
    found: dict[str, tuple[str, ...]] = {}
    for module, name in costs[np.isnan(costs["bytes"])].rows("module", "op"):
        types = _types(programs[module], programs[module].ops[name])
        if types:
            found[name] = types
    if not found:
        return Law(
            _BYTES,
            "ok",
            "no op that ran reads or writes an element type of unknown size",
            unit="ops",
        )
    return Law(
        _BYTES,
        "fail",
        f"element type {_listed(sorted({t for types in found.values() for t in types}))} is in no "
        f"table of this version, so what {_listed(list(found))} moves is not known, and no sum "
        "with it is",
        expected=len(costs),
        found=len(costs) - len(found),
        unit="ops",
        scopes=(
            *(Scope(question, figures, op=op) for op in found for question, figures in _OF_OPS),
            Scope("roofline", ("roofline_time",)),
        ),
    )


def _types(program: Program, op: Op) -> tuple[str, ...]:
    """Unknown types of what an op reads and writes, a fusion's parameters included."""
    near = [op, *(program.ops[name] for name in op.operands if name in program.ops)]
    near += program.interior(op)
    return tuple(dict.fromkeys(t for each in near for t in unknown_types(each.shape)))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


_NO_ROUTING = "the run recorded no routing"
_COUNTED = ("step", "layer", "expert", "rank")
_OF_LAYER = ("step", "layer")
_OF_RANK = ("step", "layer", "rank")


def tokens(trace: Trace) -> Law:
    """Whether the routing that figures are taken from is complete and agrees with itself."""
    if not len(trace.table("routing")) and not len(trace.table("received")):
        why = "the recorded routing is left out" if is_left_out(trace) else _NO_ROUTING
        return Law("tokens", "unchecked", why)
    known = recorded(trace)
    routing, received = known.routing, known.received
    return (
        _counted_twice(routing)
        or _not_counted(routing)
        or _received_more(routing, received)
        or _per_layer(routing)
    )


def _counted_twice(routing: Table) -> Law | None:
    is_again = np.ones(len(routing), bool)
    is_again[grouped(routing, *_COUNTED).first] = False
    again = int(is_again.sum())
    if not again:
        return None
    return Law(
        "tokens",
        "fail",
        f"{again:,} of {len(routing):,} rows of the recorded routing count an expert of a "
        f"layer and step again ({named_steps(np.unique(routing['step'][is_again]))}): more than "
        "one process wrote counts of the global batch, of which process 0 alone should",
        (Need.ROUTING,),
        expected=len(routing) - again,
        found=len(routing),
        unit="rows",
    )


def _not_counted(routing: Table) -> Law | None:
    """Experts without a row, where the layer has one in other steps: those with no token have 0."""
    if not len(routing):
        return None
    expected = len(grouped(routing, "layer", "expert")) * len(grouped(routing, "step"))
    found = len(grouped(routing, "step", "layer", "expert"))
    if found == expected:
        return None
    return Law(
        "tokens",
        "fail",
        f"{expected - found:,} of {expected:,} counts of an expert in a layer and step are missing "
        "in the recorded routing, where one that no token chose counts 0",
        (Need.ROUTING,),
        expected=expected,
        found=found,
        unit="counts",
    )


def _received_more(routing: Table, received: Table) -> Law | None:
    """A rank that received more rows than all pairs of its experts in the global batch."""
    if not len(routing) or not len(received) or len(grouped(routing, "rank")) < 2:
        return None
    of_rank, of_received = grouped(routing, *_OF_RANK), grouped(received, *_OF_RANK)
    places = received[of_received.first]
    at = places_in(places, routing[of_rank.first], *_OF_RANK)
    both = np.flatnonzero(at >= 0)
    rows = of_received.max(received["rows"])[both]
    chosen = of_rank.sum(routing["tokens"])[at[both]]
    more = np.flatnonzero(rows > chosen)
    if not len(more):
        return None
    worst = more[0]
    step, layer, rank = (int(places[name][both[worst]]) for name in _OF_RANK)
    return Law(
        "tokens",
        "fail",
        f"rank {rank} received {rows[worst]:,} rows in layer {layer} of step {step}, its experts "
        f"were chosen {chosen[worst]:,} times; so in {len(more):,} of {len(both):,} places: the "
        "two were not counted over the same batch",
        (Need.ROUTING, Need.RECEIVED),
        expected=int(chosen[worst]),
        found=int(rows[worst]),
        unit="rows",
    )


def _per_layer(routing: Table) -> Law:
    if not len(routing):
        return Law("tokens", "unchecked", "the run recorded rows received, no tokens of experts")
    of_layer = grouped(routing, *_OF_LAYER)
    places, sums = routing[of_layer.first], of_layer.sum(routing["tokens"])
    of_step = grouped(places, "step")
    least, most = (spread(each(sums), of_step) for each in (of_step.min, of_step.max))
    uneven = np.flatnonzero((least < most) & (sums == least))
    if not len(uneven):
        layers, steps = len(grouped(places, "layer")), len(of_step)
        detail = (
            f"(token, expert) pairs are as many in all {layers} layer(s) of each of {steps} step(s)"
        )
        return Law(
            "tokens", "ok", detail, expected=int(most.sum()), found=int(sums.sum()), unit="pairs"
        )
    first = uneven[0]
    step, layer = (int(places[name][first]) for name in _OF_LAYER)
    return Law(
        "tokens",
        "warn",
        f"layer {layer} of step {step} has {sums[first]:,} (token, expert) pairs, another layer "
        f"of that step {most[first]:,}: a capacity cut tokens off before they were counted, "
        "layers differ in top-k, or not all were counted",
        expected=int(most[first]),
        found=int(sums[first]),
        unit="pairs",
    )
