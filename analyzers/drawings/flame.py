"""Question: which scopes and which source lines does a step's device time go to?

Returns: one row per node of two trees: by scope, and by the calls that led to a source line.

Times are self times, as in `breakdown`: both trees sum to its op time. Scopes are those of
`jax.named_scope`, of modules and of jitted functions; the words that JAX's own transformations and
loops put between them are left out, so that forward, recompute and backward of a scope are one
node. Frames of libraries are left out, and of frames that JAX repeats (it joins the tracebacks of a
loop and of its body) the first stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from moeprof.analyzers.attribution import added, is_guess, programs_of, sums_in_steps, sure_names
from moeprof.analyzers.classify.names import scopes
from moeprof.analyzers.classify.told import best_frames, best_name, is_library
from moeprof.analyzers.question import Drawing
from moeprof.analyzers.window import PER_STEP, Window, window
from moeprof.hlo.program import Frame, Op, Program
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

SCHEMA = Schema(
    "flame",
    (
        Column("tree", "text", "", "scope or source"),
        Column("node", "int64", "", "number of the node in its tree, parents first"),
        Column("parent", "int64", "", "node that holds it; -1 for the root"),
        Column("name", "text", "", "program, scope or HLO instruction; function and line"),
        Column("per_step_ns", "float64", "ns", f"self time of all ops in it, {PER_STEP}"),
        Column("own_ns", "float64", "ns", f"of it, in no child, {PER_STEP}"),
        Column("share", "float64", "share", "of all op time"),
        Column("component", "text", "", "part of the step with the largest share of its time"),
        Column("component_share", "float64", "share", "that share"),
        Column("phase", "text", "", "phase with the largest share of that"),
        Column("phase_share", "float64", "share", "its share of the component's time"),
        Column("calls", "float64", "count", f"kernels, copies or thunks run, {PER_STEP}"),
    ),
)
ASKS = "Which scopes and source lines does the device time of a step go to?"
ROOT, NO_PROGRAM = "all device work", "no program named"
NO_SCOPE, IN_NO_SCOPE = "no scope recorded", "in no named scope"
NO_SOURCE = "no source line recorded"
LEAST_SHARE = 0.0005
"""Nodes with less of the whole are merged: half a pixel of a figure that fills a screen."""

_JAX_WORDS = re.compile(
    r"while|body|cond|closed_call|core_call|checkpoint|remat|rematted_computation|eval_jaxpr"
    r"|shard_map|smap|pjit|xla_call|custom_(jvp|vjp)_call|branch_\d+_fun|jvp|transpose|vmap"
)
_Path = tuple[str, ...]


class _Work(NamedTuple):
    """Time of one op in one part; of a kernel where the op is unknown or a guess."""

    program: Program | None
    module: int
    op: str
    ns: int
    calls: int
    part: tuple[str, str]

    @property
    def known(self) -> Op | None:
        """The instruction that it is."""
        return self.program.ops.get(self.op) if self.program else None


def flame(trace: Trace) -> Analysis:
    """Self time of the used steps as two trees; small nodes are merged, sums stay exact."""
    view = window(trace)
    works = list(_works(trace))
    total_ns = sum(work.ns for work in works)
    names = _program_names(trace)
    amounts = {
        "scope": [
            _amount((names.get(work.module, NO_PROGRAM), *_scopes(work), work.op), work)
            for work in works
        ],
        "source": [_amount(_lines(work), work) for work in works],
    }
    least_ns = int(total_ns * LEAST_SHARE)
    scope, source = (pruned(grown(ROOT, found), least_ns) for found in amounts.values())
    made = [*_rows("scope", scope, view), *_rows("source", with_trunk(source), view)]
    headline = (
        Metric("op_time", total_ns / view.shares if total_ns else None, "ns"),
        Metric("basis", view.basis, ""),
    )
    notes = (*_notes(amounts, total_ns), *view.notes)
    return Analysis(
        "flame",
        ASKS,
        headline,
        view.stated(SCHEMA),
        SCHEMA.table(made if total_ns else []),
        notes,
    )


def _works(trace: Trace) -> Iterator[_Work]:
    work = sums_in_steps(trace)
    named = work.assign(op=sure_names(work), is_known=(work["op"] != "") & ~is_guess(work))
    sums = added(named, ["module", "op", "is_known", "component", "phase"])
    programs = programs_of(trace)
    for module, op, is_op, component, phase, ns, calls in sums.rows():
        program = programs.get(module) if is_op else None
        yield _Work(program, module, op, ns, calls, (component, phase))


def _amount(path: _Path, work: _Work) -> Amount:
    return Amount(path, work.ns, work.calls, work.part)


def _program_names(trace: Trace) -> dict[int, str]:
    return dict(trace.table("modules").rows("module", "name"))


def _scopes(work: _Work) -> _Path:
    """Scopes of an op, outermost first; of an op merged from several, what they share."""
    name = best_name(work.program, work.known) if work.program and work.known else ""
    if not name:
        return (NO_SCOPE,)
    paths = [[s for s in path if not _JAX_WORDS.fullmatch(s)] for path in scopes(name)]
    return tuple(_shared(paths)) or (IN_NO_SCOPE,)


def _lines(work: _Work) -> _Path:
    """Calls that led to an op, outermost first, as ``function  file:line``."""
    frames = best_frames(work.program, work.known) if work.program and work.known else ()
    own = [frame for frame in frames if not is_library(frame)] or list(frames[:1])
    return tuple(dict.fromkeys(_line(frame) for frame in reversed(own))) or (NO_SOURCE,)


def _line(frame: Frame) -> str:
    file = frame.file.replace("\\", "/").rpartition("/")[2]
    return f"{frame.function.replace('.<locals>', '')}  {file}:{frame.line}"


def _shared(paths: Sequence[Sequence[str]]) -> list[str]:
    """What all paths begin with."""
    shared = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return shared


def _rows(tree: str, root: Branch, view: Window) -> Iterator[dict[str, object]]:
    for node, parent, branch in rows(root):
        most = branch.leading()
        yield {
            "tree": tree,
            "node": node,
            "parent": parent,
            "name": branch.name,
            "per_step_ns": branch.ns / view.shares,
            "own_ns": branch.own_ns / view.shares,
            "share": branch.ns / max(root.ns, 1),
            "component": most.component,
            "phase": most.phase,
            "phase_share": most.phase_ns / most.component_ns if most.component_ns else 1.0,
            "component_share": most.component_ns / branch.ns if branch.ns else 1.0,
            "calls": branch.calls / view.shares,
        }


def _notes(amounts: dict[str, list[Amount]], total_ns: int) -> tuple[str, ...]:
    if not total_ns:
        return ("none in this trace: no device work",)
    unknown = {"a scope": (NO_SCOPE, "scope"), "a source line": (NO_SOURCE, "source")}
    shares = {
        what: sum(a.ns for a in amounts[tree] if name in a.path[:2]) / total_ns
        for what, (name, tree) in unknown.items()
    }
    return (
        f"in the figures by scope and source line, parts with less than {100 * LEAST_SHARE:.2f} % "
        "of the whole are merged; sums stay exact",
        *(
            f"{format_percent(share)} of op time is of ops without {what}"
            for what, share in shares.items()
            if share
        ),
    )


# How do amounts with paths become one tree that is small enough to draw? Sums are whole numbers, so
# that a node is exactly its own part and its children, however many of them are merged.

DEEPEST = 64
"""Names of a path that are kept; what lies deeper counts to the last of them."""


class Amount(NamedTuple):
    """Work at the end of a path, outermost name first; `part` is its component and phase."""

    path: tuple[str, ...]
    ns: int
    calls: int
    part: tuple[str, str]


class Leading(NamedTuple):
    """What most of a node is: a component with its time, and its main phase with its time."""

    component: str
    component_ns: int
    phase: str
    phase_ns: int


@dataclass
class Branch:
    """A node: its time with all below it, its own, and the time of each part below it."""

    name: str
    ns: int = 0
    own_ns: int = 0
    calls: int = 0
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    below: dict[str, Branch] = field(default_factory=dict)

    def leading(self) -> Leading:
        """The component with most of its time and its main phase; of equal ones the first."""
        by_component: Counter[str] = Counter()
        for (component, _phase), ns in self.parts.items():
            by_component[component] += ns
        most = _most(by_component)
        phases = {phase: ns for (component, phase), ns in self.parts.items() if component == most}
        phase = _most(phases)
        return Leading(most, by_component[most], phase, phases.get(phase, 0))

    def add(self, amount: Amount) -> None:
        """Count an amount that lies in this node or below it."""
        self.ns += amount.ns
        self.calls += amount.calls
        self.parts[amount.part] += amount.ns


def _most(amounts: Mapping[str, int]) -> str:
    return min(amounts, key=lambda name: (-amounts[name], name), default="")


def grown(name: str, amounts: Iterable[Amount]) -> Branch:
    """The tree of all amounts below one root."""
    root = Branch(name)
    for amount in amounts:
        branch = root
        branch.add(amount)
        for step in amount.path[:DEEPEST]:
            branch = branch.below.setdefault(step, Branch(step))
            branch.add(amount)
        branch.own_ns += amount.ns
    return root


def pruned(branch: Branch, least_ns: int) -> Branch:
    """The tree with the children of each node that are smaller than `least_ns` merged into one.

    A small child that is the only one keeps its name, and loses what is below it.
    """
    large = [pruned(child, least_ns) for child in branch.below.values() if child.ns >= least_ns]
    small = [child for child in branch.below.values() if child.ns < least_ns]
    rest = [_merged(small)] if small else []
    ordered = sorted(large, key=lambda child: (-child.ns, child.name))
    return Branch(
        branch.name,
        branch.ns,
        branch.own_ns,
        branch.calls,
        branch.parts,
        {child.name: child for child in [*ordered, *rest]},
    )


def _merged(small: list[Branch]) -> Branch:
    name = small[0].name if len(small) == 1 else f"… {len(small)} smaller"
    parts: Counter[tuple[str, str]] = Counter()
    for child in small:
        parts.update(child.parts)
    total_ns = sum(child.ns for child in small)
    return Branch(name, total_ns, total_ns, sum(child.calls for child in small), parts)


def with_trunk(root: Branch) -> Branch:
    """The tree with the calls that lead to all of its largest child as one node, named by all.

    They are the way from the script to the step: without them what branches gets the room.
    """
    if not root.below:
        return root
    first, *others = root.below.values()
    names = [first.name]
    while len(first.below) == 1 and not first.own_ns:
        (first,) = first.below.values()
        names.append(first.name)
    trunk = replace(first, name=" › ".join(names))
    return replace(root, below={child.name: child for child in (trunk, *others)})


class Row(NamedTuple):
    """A node with its number and that of its parent, -1 for the root; parents come first."""

    node: int
    parent: int
    branch: Branch


def rows(root: Branch) -> Iterator[Row]:
    """Every node of a tree, depth first."""
    stack, node = [(root, -1)], 0
    while stack:
        branch, parent = stack.pop()
        yield Row(node, parent, branch)
        stack += [(child, node) for child in reversed(branch.below.values())]
        node += 1


DRAWING = Drawing(beside="ops", place=1, asks=ASKS, schema=SCHEMA, run=flame)
