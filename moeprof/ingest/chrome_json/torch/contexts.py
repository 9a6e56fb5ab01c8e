"""Which modules, functions and annotations stand around a call of the host, and in which phase?

What PyTorch's profiler writes of the host nests on each thread: Python's functions and modules
(with ``with_stack``), annotations, ops of the dispatcher. Of a backward op that is the engine and
its node alone. The node carries the sequence number that its forward op had, so that it stands
where that did. Recomputed ops run inside a node too, and are told by what calls them, or by
numbers of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from moeprof.hlo.instruction import Frame
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.steps import KINETO_STEP
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.intervals import nesting

OTHER, FORWARD, BACKWARD, RECOMPUTE = range(4)
PHASES = ("other", "forward", "backward", "recompute")
"""Names of the phases by number, as `torch/PHASE/…` begins an op's path with them."""
CPU_OP, ANNOTATION, FUNCTION = "cpu_op", "user_annotation", "python_function"

_PASSED, _SCOPE, _MODULE, _FRAME, _NODE, _AGAIN, _APART = range(7)
"""What an event is to those inside it: nothing; a name; a module; a line of the user's; a node of
autograd; the start of recomputing; the optimizer's work."""

_ENGINE = "autograd::engine::evaluate_function"
_MODULE_NAME = re.compile(r"nn\.Module: (.+)")
_LINE = re.compile(r"(.+)\((\d+)\): (.+)")
_TORCH = r"(^|(site|dist)-packages/)torch/"
_LIBRARY = re.compile(
    _TORCH + r"|^<|(^|/)(threading|contextlib|runpy|functools|inspect)\.py\(|"
    r"(^|/)(multiprocessing|importlib|concurrent)/"
)
"""Functions of PyTorch and of Python, that say nothing of a model."""
_RECOMPUTING = re.compile(_TORCH + r"utils/checkpoint\.py\(\d+\): .*(recompute|unpack_hook)")
_BACKWARD = re.compile(r"Backward\d*$")
_OPTIMIZER = re.compile(rf"Optimizer\.(step|zero_grad)#|{_TORCH}(optim/|nn/utils/clip_grad\.py)")


@dataclass(frozen=True)
class Context:
    """Names around a call and its own, outermost first; lines of source, innermost first."""

    phase: int
    scopes: tuple[str, ...]
    frames: tuple[Frame, ...]

    @property
    def path(self) -> str:
        """The names as the ``op_name`` of an instruction: ``torch/backward/Model_0/aten::mm``."""
        return "/".join(("torch", PHASES[self.phase], *self.scopes))


@dataclass(frozen=True)
class Contexts:
    """Of each of ``places`` (rows of the trace's events) what is around it.

    ``op`` is the place of the op of the dispatcher that it is or lies directly in, -1 for none;
    ``of`` numbers a context each, itself included, that `contexts` lists. ``nodes`` counts nodes of
    autograd that a forward op made, ``told`` those whose op is known.
    """

    places: Int64s
    op: Int64s
    of: Int64s
    nodes: int
    told: int
    _above: list[int]
    _elements: list[tuple[int, str]]
    _listed: list[tuple[int, int]]

    @cached_property
    def contexts(self) -> list[Context]:
        """Each context by its number."""
        known: dict[int, tuple[tuple[str, ...], tuple[Frame, ...]]] = {0: ((), ())}
        for node in range(1, len(self._elements)):  # what is around comes first
            scopes, frames = known[self._above[node]]
            kind, text = self._elements[node]
            if kind == _FRAME:
                frame = _frame(text)
                frames = (frame, *frames) if frame else frames
            else:
                scopes = (*scopes, _scope(text))
            known[node] = scopes, frames
        return [Context(phase, *known[node]) for node, phase in self._listed]


def contexts_of(gathered: Gathered, is_host: Flags) -> Contexts:
    """What is around each event of ``is_host``: ops, functions, annotations, calls of a driver."""
    places = np.flatnonzero(is_host)
    kind = _kinds(gathered, *(gathered.column(name)[places] for name in ("category", "event")))
    # what says nothing is left out: the functions that begin and end annotations cross these
    is_call = gathered.column("correlation")[places] != NONE
    is_telling = (kind != _PASSED) | is_call
    places, kind = places[is_telling], kind[is_telling]
    column = {
        name: gathered.column(name)[places]
        for name in ("process", "thread", "category", "event", "start_ns", "end_ns")
    }
    texts, code = gathered.labels.texts, gathered.labels.code
    track = column["process"] * len(texts) + column["thread"]
    nested = nesting(track, column["start_ns"], column["end_ns"])
    is_op = column["category"] == code(CPU_OP)
    calls = _autograd(gathered, places)
    is_forward_op = is_op & (kind != _NODE) & (calls.sequence >= 0) & (calls.thread <= 0)
    forward = _forward_ops(gathered, column, track, kind, calls, is_forward_op)
    parent = np.where(forward >= 0, forward, nested.parent)
    waves = _waves(_depth(parent))
    phase, is_again = _phases(waves, nested.parent, parent, kind, is_forward_op, column["start_ns"])
    op = np.full(len(places), -1, np.int64)
    for wave in _waves(nested.depth):
        above = nested.parent[wave]
        op[wave] = np.where(is_op[wave] & (kind[wave] != _NODE), wave, _at(op, above, -1))
    node, above_of, elements = _tree(waves, parent, is_again, kind, column["event"])
    listed, of = np.unique(node * len(PHASES) + phase, return_inverse=True)
    return Contexts(
        places,
        np.where(op >= 0, places[op], -1),
        of,
        int(((kind == _NODE) & (calls.sequence >= 0)).sum()),
        int((forward >= 0).sum()),
        above_of,
        [(k, texts[label]) for k, label in elements],
        [divmod(each, len(PHASES)) for each in listed.tolist()],
    )


def _kinds(gathered: Gathered, category: Int64s, named: Int64s) -> Int64s:
    """What each event is to those inside it."""
    texts, code = gathered.labels.texts, gathered.labels.code
    known = {code(CPU_OP): _kind_of_op, code(ANNOTATION): _kind_of_annotation}
    known[code(FUNCTION)] = _kind_of_function
    pairs, at = np.unique(category * len(texts) + named, return_inverse=True)
    kinds = []
    for pair in pairs.tolist():
        group, label = divmod(pair, len(texts))
        kinds.append(known[group](texts[label]) if group in known else _PASSED)
    return np.array(kinds, np.int64)[at] if kinds else np.zeros(0, np.int64)


def _kind_of_op(name: str) -> int:
    return _NODE if name.startswith(_ENGINE) else _SCOPE


def _kind_of_annotation(name: str) -> int:
    if name.startswith(KINETO_STEP):
        return _PASSED
    return _APART if _OPTIMIZER.search(name) else _SCOPE


def _kind_of_function(name: str) -> int:
    if _OPTIMIZER.search(name):
        return _APART
    if _MODULE_NAME.match(name):
        return _MODULE
    if _RECOMPUTING.search(name):
        return _AGAIN
    return _PASSED if _LIBRARY.search(name) or not _LINE.match(name) else _FRAME


class _Autograd(NamedTuple):
    """Of each event the number that autograd gave, and autograd's own number of a thread.

    `NONE` where there is none. A node has the number and the thread of its forward op. An op of a
    forward pass has the number that the next node will have; its thread is 0 or none.
    """

    sequence: Int64s
    thread: Int64s


def _autograd(gathered: Gathered, places: Int64s) -> _Autograd:
    calls = gathered.calls()
    at = np.searchsorted(places, calls["place"])
    is_known = (at < len(places)) & (places[np.minimum(at, len(places) - 1)] == calls["place"])
    found = _Autograd(*(np.full(len(places), NONE, np.int64) for _ in _Autograd._fields))
    found.sequence[at[is_known]] = calls["sequence"][is_known]
    found.thread[at[is_known]] = calls["forward_thread"][is_known]
    return found


def _forward_ops(
    gathered: Gathered,
    column: Mapping[str, Int64s],
    track: Int64s,
    kind: Int64s,
    calls: _Autograd,
    is_forward_op: Flags,
) -> Int64s:
    """The place of the forward op of each node of autograd; -1 for none, and for other events.

    Each thread counts its nodes itself. Which thread autograd means by a number of its own nothing
    says: it is the one whose ops of the same number bear the names of the nodes. Several ops nested
    in one another see the number that the next node will have; the last of them makes it.
    """
    found = np.full(len(kind), -1, np.int64)
    nodes = np.flatnonzero((kind == _NODE) & (calls.sequence >= 0))
    named = _plain_names(gathered, column["event"])
    start_ns = column["start_ns"]
    for thread in np.unique(calls.thread[nodes]).tolist():
        mine = nodes[calls.thread[nodes] == thread]
        best = 0
        for one in np.unique(track[is_forward_op]).tolist():
            ops = np.flatnonzero(is_forward_op & (track == one))
            ops = ops[np.lexsort((start_ns[ops], calls.sequence[ops]))]
            at = np.searchsorted(calls.sequence[ops], calls.sequence[mine], side="right") - 1
            op = ops[np.maximum(at, 0)]
            is_its = (at >= 0) & (calls.sequence[op] == calls.sequence[mine])
            is_its &= start_ns[op] < start_ns[mine]
            alike = int((named[op] == named[mine])[is_its].sum())
            if alike > best:
                best = alike
                found[mine] = np.where(is_its, op, -1)
    return found


def _plain_names(gathered: Gathered, event: Int64s) -> Int64s:
    """A number for the name by which an op and its node can be compared.

    ``aten::_grouped_mm`` and ``GroupedMmBackward0`` are both ``groupedmm``.
    """
    texts = gathered.labels.texts
    used, at = np.unique(event, return_inverse=True)
    plain = [_plain(texts[label]) for label in used.tolist()]
    codes = {name: code for code, name in enumerate(dict.fromkeys(plain))}
    return np.array([codes[name] for name in plain], np.int64)[at]


def _plain(name: str) -> str:
    name = name.removeprefix(f"{_ENGINE}: ").rpartition("::")[2]
    return _BACKWARD.sub("", name).replace("_", "").lower()


def _depth(parent: Int64s) -> Int64s:
    """How many are above each place."""
    depth, above = (parent >= 0).astype(np.int64), parent.copy()
    while (above >= 0).any():
        depth += _at(depth, above, 0)
        above = _at(above, above, -1)
    return depth


def _waves(depth: Int64s) -> list[Int64s]:
    """Places by how many are above them, those above first."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.searchsorted(depth[order], np.arange(1, depth.max(initial=0) + 1)))


def _at(values: Int64s, places: Int64s, otherwise: int) -> Int64s:
    """Values at places; -1 is none."""
    if not len(values):
        return np.full(len(places), otherwise, np.int64)
    return np.where(places >= 0, values[np.maximum(places, 0)], otherwise)


def _phases(
    waves: list[Int64s],
    nested: Int64s,
    parent: Int64s,
    kind: Int64s,
    is_forward_op: Flags,
    start_ns: Int64s,
) -> tuple[Int64s, Flags]:
    """The phase of each event, and which ones begin to recompute.

    What runs inside a node of autograd is backward, unless a module, a function of checkpointing
    or an op that makes a node of its own is around it there; what stands between two of these in
    time is of the same. A module or an op that makes a node is forward elsewhere, unless the
    optimizer calls it.
    """
    count = len(parent)
    node, again = np.full(count, -1, np.int64), np.zeros(count, bool)
    forward, apart = np.zeros(count, bool), np.zeros(count, bool)
    is_model = (kind == _MODULE) | is_forward_op
    for wave in waves:
        above, is_node = nested[wave], kind[wave] == _NODE
        node[wave] = np.where(is_node, wave, _at(node, above, -1))
        is_inside = node[wave] >= 0
        begins = is_inside & (is_model[wave] | (kind[wave] == _AGAIN))
        again[wave] = ~is_node & (begins | (_at(again, above, 0) > 0))
        forward[wave] = is_model[wave] | (_at(forward, above, 0) > 0)
        apart[wave] = (kind[wave] == _APART) | (_at(apart, above, 0) > 0)
    again |= _between(node, again, start_ns) & (kind != _NODE)
    phase = np.where(forward & ~apart, FORWARD, OTHER)
    phase = np.where(node >= 0, np.where(again, RECOMPUTE, BACKWARD), phase)
    is_first = again & ~(_at(again, nested, 0) > 0)
    return phase, is_first


def _between(node: Int64s, again: Flags, start_ns: Int64s) -> Flags:
    """Events of a node that begin between the first and the last of it that recompute."""
    count = len(node)
    first, last = np.full(count + 1, 2**62, np.int64), np.full(count + 1, -(2**62), np.int64)
    np.minimum.at(first, node[again], start_ns[again])
    np.maximum.at(last, node[again], start_ns[again])
    found: Flags = (node >= 0) & (start_ns >= first[node]) & (start_ns <= last[node])
    return found


def _tree(
    waves: list[Int64s], parent: Int64s, is_first: Flags, kind: Int64s, named: Int64s
) -> tuple[Int64s, list[int], list[tuple[int, int]]]:
    """The chain of names around each event as a node of a tree; above and element of each node.

    What begins to recompute stands in a chain of its own.
    """
    node = np.zeros(len(parent), np.int64)
    above_of, elements = [0], [(_PASSED, 0)]
    labels = int(named.max(initial=0)) + 1
    for wave in waves:
        above = np.where(is_first[wave], 0, _at(node, parent[wave], 0))
        is_named = np.isin(kind[wave], (_SCOPE, _MODULE, _FRAME, _APART))
        keys = (above * (_APART + 1) + kind[wave]) * labels + named[wave]
        known, at = np.unique(keys[is_named], return_inverse=True)
        for key in known.tolist():
            rest, label = divmod(key, labels)
            over, what = divmod(rest, _APART + 1)
            above_of.append(over)
            elements.append((what, label))
        node[wave] = above
        node[wave[is_named]] = len(elements) - len(known) + at
    return node, above_of, elements


def _scope(text: str) -> str:
    """A name as an element of a path: a slash would be two."""
    if module := _MODULE_NAME.match(text):
        text = module[1]
    elif line := _LINE.match(text):
        text = f"{PurePath(line[1]).stem}.{line[3]}"
    return text.replace("/", ".").strip("() ") or "unnamed"


def _frame(text: str) -> Frame | None:
    found = _LINE.match(text)
    return Frame(found[1], int(found[2]), found[3]) if found else None
