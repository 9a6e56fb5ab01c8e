"""Question: what does a compiled program compute, move and send, and how long does that take?

An op in a loop counts as often as the loop's trip count says. Nothing tells how often a branch, or
a loop without a known count, is taken: what stands in one has -1 runs and is in no sum.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan, prod

import numpy as np
import pandas as pd

from moeprof.analyzers.classify.components import COLLECTIVES as COLLECTIVE_OPCODES
from moeprof.analyzers.classify.components import LOOPS
from moeprof.analyzers.classify.op_kinds import exchange_of
from moeprof.analyzers.communication.bandwidth import bus_factor
from moeprof.analyzers.communication.sites import NOT_KNOWN, Site, sites_of
from moeprof.analyzers.costs.flops import NO_PRODUCTS, Flops, flops_of
from moeprof.analyzers.costs.table import bytes_of, rounds_of
from moeprof.hlo.instruction import Groups
from moeprof.hlo.program import Op, Program
from moeprof.projector.step_time.rates import (
    Group,
    Links,
    Rates,
    all_to_all_s,
    gather_s,
    links_of,
    rates_of,
)
from moeprof.specs.hardware import HardwareSpec
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.vocabulary import kind_of_target

OPS = Schema(
    "planned_ops",
    (
        Column("op", "text", "", "HLO instruction"),
        Column("opcode", "text", "", "HLO opcode, or the target of a custom call"),
        Column("kind", "text", "", "gemm, grouped gemm, convolution, attention, other, …"),
        Column("dtype", "text", "", "element type of what is multiplied; empty for no product"),
        Column("runs", "int64", "count", "executions in a step; -1 where nothing tells"),
        Column("flops", "float64", "FLOP", "matrix FLOPs of one execution; none if not known"),
        Column("bytes", "float64", "bytes", "memory traffic of one execution at the least"),
        Column("roofline_s", "float64", "s", "one execution at the device's peaks; none unknown"),
        Column("reached_s", "float64", "s", "one execution at the rates that devices reach"),
    ),
)
COLLECTIVES = Schema(
    "planned_collectives",
    (
        Column("op", "text", "", "HLO instruction"),
        Column("opcode", "text", "", "all-gather, all-reduce, …; or the target of a custom call"),
        Column("axis", "text", "", "mesh axes that its groups run along; empty where not known"),
        Column("group_size", "int64", "count", "devices in a group; 0 where there are no groups"),
        Column("runs", "int64", "count", "executions in a step; -1 where nothing tells"),
        Column("bytes", "float64", "bytes", "of the whole message, as nccl-tests counts; or none"),
        Column("at_most_bytes", "float64", "bytes", "the most that it can be; none if not known"),
        Column("sent_bytes", "float64", "bytes", "that cross a device's link in one execution"),
        Column("roofline_s", "float64", "s", "one execution at the links' peaks; none if unknown"),
        Column("reached_s", "float64", "s", "one execution at the rates that links reach"),
    ),
)
_KINDS = {"grouped gemm": "grouped", "attention": "attention", "causal attention": "attention"}
_ASYNC = "async-start"
_FREE_CALLS = frozenset(
    {"AllocateBuffer", "annotate_device_placement", "Sharding", "cu_threefry2x32_ffi"}
)
"""Custom calls of XLA's and JAX's that multiply nothing: memory, placement, random numbers."""
_OURS = re.compile(r"/moeprof/projector/(?:any_step|compiled)/|^<frozen runpy>")


def named(trace: Trace, name: str, arguments: Sequence[str]) -> Trace:
    """A trace of `exported.build_exported` as if the function had been compiled itself.

    Its arguments, given one by one, get their names; the call that is around it is taken out of
    the paths of its ops, and lines of this package from theirs.
    """
    table = trace.hlo_ops
    called = {each for text in table["called"] for each in text.split()}
    is_given = table["opcode"].eq("parameter") & ~table["computation"].isin(called)
    given = table["parameter"].map(dict(enumerate(arguments))).astype("object").where(is_given)
    paths = table["op_name"].str.replace(f"jit({name})/call_exported/", "", regex=False)
    frames = table["frames"].astype("str").map(_theirs).astype("category")
    changed = table.assign(op_name=given.fillna(paths).astype("str"), frames=frames)
    return dataclasses.replace(trace, hlo_ops=changed)


def _theirs(frames: str) -> str:
    return "\n".join(line for line in frames.splitlines() if not _OURS.search(line))


def executed(program: Program) -> Iterator[Op]:
    """The ops that a device runs by themselves: of the entry, of loops, branches and calls.

    Of work that is started and waited for, what it runs; not the op that starts it.
    """
    todo = [name for name in program.members if name not in program.callers]
    while todo:
        for op in program.members[todo.pop()]:
            if op.opcode in LOOPS or op.opcode == _ASYNC:
                todo += op.called
            if op.opcode not in LOOPS | {_ASYNC, "async-update", "async-done"}:
                yield op


def ops_table(trace: Trace, module: int, hardware: HardwareSpec) -> pd.DataFrame:
    """`OPS` of a program: all that runs by itself but collectives, what costs most time first."""
    program = trace.programs[module]
    sent = {op.name for op in executed(program) if _is_sent(program, op)}
    rows = [
        _op_row(trace, module, op, hardware)
        for op in executed(program)
        if op.name not in sent and not op.opcode.endswith("-done")
    ]
    table = OPS.frame([row for row in rows if row["flops"] != 0 or row["bytes"] != 0])
    order = (table["roofline_s"] * table["runs"].clip(lower=0)).sort_values(
        ascending=False, kind="stable"
    )
    return table.loc[order.index].reset_index(drop=True)


def _is_sent(program: Program, op: Op) -> bool:
    return bool(program.opcodes(op) & (COLLECTIVE_OPCODES | {"send", "recv"})) or (
        op.opcode == "custom-call" and exchange_of(op.target) is not None
    )


def _op_row(trace: Trace, module: int, op: Op, hardware: HardwareSpec) -> dict[str, object]:
    program = trace.programs[module]
    found, moved = op_flops(program, op), bytes_of(program, op)
    rates = rates_of(hardware)
    share = getattr(rates, _KINDS.get(found.kind, "gemm"))
    memory_s = nan if moved is None else moved / hardware.hbm_bytes_per_s
    peak = hardware.flops_per_s(found.dtype)
    work_s = 0.0 if found.flops == 0 else nan
    if found.flops and peak:
        work_s = found.flops / peak
    return {
        "op": op.name,
        "opcode": op.target if op.opcode == "custom-call" else op.opcode,
        "kind": found.kind,
        "dtype": found.dtype,
        "runs": rounds_of(trace.programs, module, op.name),
        "flops": nan if found.flops is None else float(found.flops),
        "bytes": nan if moved is None else float(moved),
        "roofline_s": float(np.fmax(work_s, memory_s)),
        "reached_s": max(work_s / share, memory_s / rates.memory) if work_s == work_s else nan,
    }


def op_flops(program: Program, op: Op) -> Flops:
    """`flops_of`; of a custom call whose target nothing knows they are not known, and never 0."""
    found = flops_of(program, op)
    if found == NO_PRODUCTS and any(is_foreign(member) for member in program.interior(op)):
        return Flops(None, "", "custom call")
    return found


def is_foreign(op: Op) -> bool:
    """Whether it is a custom call of which nothing is known but its operands and results."""
    is_call = op.opcode == "custom-call" and op.target not in _FREE_CALLS
    return is_call and not kind_of_target(op.target)


def collectives_table(
    trace: Trace, module: int, axes: Mapping[str, int], hardware: HardwareSpec
) -> pd.DataFrame:
    """`COLLECTIVES` of a program, what sends most in a step first."""
    program = trace.programs[module]
    running = {op.name for op in executed(program) if _is_sent(program, op)}
    mine = trace.hlo_ops["module"].eq(module) & trace.hlo_ops["op"].isin(running)
    rows = np.flatnonzero(mine.to_numpy()).tolist()
    devices = prod(axes.values())
    sites = sites_of(trace, rows, {module: devices})
    table = COLLECTIVES.frame([_site_row(trace, site, axes, hardware) for site in sites])
    sent = (table["sent_bytes"] * table["runs"].clip(lower=0)).fillna(inf)
    return table.loc[sent.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def _site_row(
    trace: Trace, site: Site, axes: Mapping[str, int], hardware: HardwareSpec
) -> dict[str, object]:
    op = trace.programs[site.module].ops[site.op]
    is_call = site.opcode == "custom-call"
    size, most = (
        nan if each == NOT_KNOWN else float(each) for each in (site.bytes, site.bytes_bound)
    )
    rates = rates_of(hardware)
    peaks = rates._replace(peer=1.0, network=1.0)
    along = axes_of_pairs(op.pairs, axes) if op.pairs else axes_of_groups(site.groups, axes)
    return {
        "op": site.op,
        "opcode": op.target if is_call else site.opcode,
        "axis": along,
        "group_size": site.group_size,
        "runs": rounds_of(trace.programs, site.module, site.op),
        "bytes": size,
        "at_most_bytes": most,
        "sent_bytes": size * (1.0 if op.pairs else bus_factor(site.opcode, site.group_size)),
        "roofline_s": _seconds(site, op, size, hardware, peaks),
        "reached_s": _seconds(site, op, most, hardware, rates),
    }


def _seconds(site: Site, op: Op, size: float, hardware: HardwareSpec, rates: Rates) -> float:
    """One execution, on the links of the group that has most members beyond a host."""
    links = links_of(hardware, rates)
    if op.pairs:
        is_far = any(a // links.domain != b // links.domain for a, b in op.pairs)
        return size / (links.network_bytes_per_s if is_far else links.peer_bytes_per_s)
    if not site.groups:
        return nan
    group = min((_group(members, links) for members in site.groups), key=lambda g: g.inside)
    if site.opcode in ("all-to-all", "ragged-all-to-all", "custom-call"):
        return float(all_to_all_s(size, group, links))
    return float(gather_s(size, group, links)) * (2 if site.opcode == "all-reduce" else 1)


def _group(members: Sequence[int], links: Links) -> Group:
    """How many there are, and how many of them the fullest host holds."""
    hosts = np.unique(np.array(members) // links.domain, return_counts=True)[1]
    return Group(len(members), int(hosts.max()))


# Along which axes of a mesh the devices of a collective lie. A program counts its devices in the
# order of the mesh, the last axis fastest.


def axes_of_groups(groups: Groups, axes: Mapping[str, int]) -> str:
    """``fsdp``, or ``data × fsdp`` where groups run along both; empty where they fit no axes."""
    wanted = {frozenset(group) for group in groups}
    wide = [name for name, size in axes.items() if size > 1]
    for count in range(1, len(wide) + 1):
        for names in itertools.combinations(wide, count):
            if {frozenset(row) for row in _lines(axes, names)} == wanted:
                return " × ".join(names)
    return ""


def axes_of_pairs(pairs: Groups, axes: Mapping[str, int]) -> str:
    """The axes along which the two devices of each pair differ; empty where there are no pairs."""
    devices = prod(axes.values())
    if not pairs or max(map(max, pairs)) >= devices:
        return ""
    ends = np.array(pairs).T
    places = [np.unravel_index(end, tuple(axes.values())) for end in ends]
    moved = [np.any(source != target) for source, target in zip(*places, strict=True)]
    return " × ".join(name for name, is_moved in zip(axes, moved, strict=True) if is_moved)


def _lines(axes: Mapping[str, int], names: tuple[str, ...]) -> list[list[int]]:
    """The devices of each line along some of the axes."""
    ids = np.arange(prod(axes.values())).reshape(tuple(axes.values()))
    places = [list(axes).index(name) for name in names]
    moved = np.moveaxis(ids, places, range(-len(places), 0))
    lines: list[list[int]] = moved.reshape(-1, prod(axes[name] for name in names)).tolist()
    return lines


# How long a step takes. At least: every op at the device's peaks, one after the other, each bound
# by its matrix FLOPs or by the memory that it reads and writes at best; collectives at the peaks of
# links, all hidden behind that, or the other way round. At the rates reached
# (`moeprof.projector.step_time.rates`): the same with those rates, and nothing hidden. Neither
# counts launches, nor waiting for a slower device.


@dataclass(frozen=True)
class Roofline:
    """Seconds of one step.

    ``compute_s`` is FLOPs at the peaks of their element types, ``memory_s`` bytes at the memory's,
    ``ops_s`` the larger of the two op by op, ``collectives_s`` what links take. ``at_most_s`` is
    None where ``reason`` says why.
    """

    compute_s: float
    memory_s: float
    ops_s: float
    collectives_s: float
    at_most_s: float | None
    reason: str
    rates: str

    @property
    def at_least_s(self) -> float:
        """Ops or collectives, whichever takes longer: the other is hidden behind it at best."""
        return max(self.ops_s, self.collectives_s)

    @property
    def seconds(self) -> float:
        """`at_least_s`: the roofline itself."""
        return self.at_least_s

    @property
    def band(self) -> tuple[float, float | None]:
        """From `at_least_s` to `at_most_s`."""
        return self.at_least_s, self.at_most_s


def roofline_of(ops: pd.DataFrame, sent: pd.DataFrame, hardware: HardwareSpec) -> Roofline:
    """The roofline of the tables `OPS` and `COLLECTIVES`."""
    rates = rates_of(hardware)
    peaks = ops["dtype"].map(lambda dtype: hardware.flops_per_s(dtype) or np.nan).astype("float64")
    reached = [*_total(ops, "reached_s"), *_total(sent, "reached_s")]
    lacking = sorted({name for name, seconds in reached if np.isnan(seconds)})
    return Roofline(
        compute_s=_sum(ops, ops["flops"] / peaks),
        memory_s=_sum(ops, ops["bytes"] / hardware.hbm_bytes_per_s),
        ops_s=_sum(ops, ops["roofline_s"]),
        collectives_s=_sum(sent, sent["roofline_s"]),
        at_most_s=None if lacking else float(sum(seconds for _, seconds in reached)),
        reason=f"no rate is known of {_listed(lacking)}" if lacking else "",
        rates=f"{rates.source} (confidence {rates.confidence})",
    )


def _sum(table: pd.DataFrame, seconds: pd.Series) -> float:
    """Seconds of a step; what is not known, or runs nobody knows how often, adds nothing."""
    return float((seconds * table["runs"].clip(lower=0)).fillna(0.0).sum())


def _total(table: pd.DataFrame, name: str) -> list[tuple[str, float]]:
    """(kind, seconds in a step) of each op; NaN where not known."""
    seconds = table[name] * table["runs"].where(table["runs"].ge(0))
    kinds = table["opcode"]
    if "dtype" in table:
        kinds = kinds.where(table["dtype"].eq(""), "products in " + table["dtype"])
    kinds = kinds.where(table["runs"].ge(0), "branches or loops without a count")
    return list(zip(kinds.tolist(), seconds.tolist(), strict=True))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
