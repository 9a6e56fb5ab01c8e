"""Which components are right for an instruction of a compiled program, whatever it is called.

The first rule that speaks decides:

1. A loop, branch or call (``while``, ``conditional``, ``call``) is ``loop_gaps``, as its body has
   ops of its own, or what its line is.
2. A collective that the program asked for (its op_name ends in all_to_all, psum, …), on a line
   whose truth is an exchange (dispatch, combine, weight_gather, gradient_reduce, collectives), is
   that. Any other was put in by the compiler:
   - an all-gather of what is only a view of a parameter of the program, a float of two or more
     dimensions, is ``weight_gather``;
   - a sum over devices (all-reduce, reduce-scatter) in the backward pass (it or an operand of it,
     and not recomputed) or without a name, most of whose bytes have the dims of a weight or of a
     shard of one, is ``gradient_reduce``;
   - else it is ``collectives``, or what its line is, without one what the nearest ops are; where
     that is permute or unpermute and not router (whose tables are no tokens), it may be
     ``dispatch`` or ``combine`` as well.
   The end of an asynchronous collective is what its start is.
3. A fusion with matrix products is what the lines of these are; a product with the weights of
   several lines at once, which are sliced out of its result, what these are. On a line that is
   grouped_gemm a product is that alone; what multiplies nothing there (masks, changes of layout)
   may be ``expert_elementwise`` as well, by this or any rule below.
4. Any op is what its own line is; the innermost line with a truth counts. A backward op carries
   the line of its forward, so it has the same component.
5. A fusion without such a line is what the first of its parts with one is, from its root inwards
   (what writes the result before what reads the operands), or what uses its result: a mask that
   the compiler puts around gathered rows serves the product behind it.
6. An op without any (a copy, transpose, convert of the compiler's, a loop's slices) is what the
   nearest ops with a truth are that use its result, or that made its operands: both are right.
   Operands of less than a quarter of the largest one's elements (indices, counts) do not count.
   Tuples, loops and calls between them are seen through, and collectives as well, whose own
   truth counts too; other ops without a truth are steps on the way.
7. A ``copy`` by opcode may be ``copies`` as well, whatever it copies. So is a copy or memory set
   that a device ran outside any program.

What is left has no right answer and counts as wrong; the scorer says how much that is.
"""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from op_flow import LOOPS, SEEN_THROUGH, Graph, Node, Value
from source_truth import NONE, Components, SourceTruth

COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute"}
    | {"collective-broadcast", "ragged-all-to-all"}
)
_EXCHANGES = frozenset({"dispatch", "combine", "weight_gather", "gradient_reduce", "collectives"})
_ASKED = re.compile(
    r"(all_to_all|psum\w*|pmean|pmax|pmin|ppermute|all_gather\w*|reduce_scatter)\W*$"
)
_VIEWS = SEEN_THROUGH | {
    *("copy", "bitcast", "bitcast-convert", "convert", "reshape", "transpose", "slice"),
    *("dynamic-slice", "broadcast", "constant", "copy-start", "copy-done"),
}
_INDEX_ARITHMETIC = frozenset({"add", "compare", "select", "subtract", "clamp", "iota"})
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_FLOAT = re.compile(r"^(b?f\d|f8)")
_PRODUCTS = frozenset({"dot", "ragged-dot", "convolution", "custom-call"})
_PASSAGES = SEEN_THROUGH | {"bitcast"}
_FARTHEST = 8


class Truth(NamedTuple):
    """Right components, and by what they are: loop, collective, product, line, part, neighbour.

    ``unasked``, a collective without a line, is there on the way alone.
    """

    components: Components
    by: str


def truths(graph: Graph, source: SourceTruth) -> dict[str, Truth]:
    """The truth of every instruction that is not inside a fusion, by its name."""
    own = {}
    for node in graph.nodes.values():
        caller = graph.callers.get(node.computation)
        if caller is None or caller.opcode in SEEN_THROUGH:
            own[node.name] = _own(graph, source, node)
    return {name: _widened(graph, name, _completed(graph, own, name)) for name in own}


def _widened(graph: Graph, name: str, found: Truth) -> Truth:
    """What else an op may be called, by what it does: a copy, or work between products."""
    more = {"copies"} if graph.nodes[name].base == "copy" else set()
    if "grouped_gemm" in found.components and found.by != "product":
        more.add("expert_elementwise")
    return Truth(found.components | more, found.by)


def _own(graph: Graph, source: SourceTruth, node: Node) -> Truth:
    line = source.of(node.op_name, node.frames)
    if node.opcode in LOOPS:
        return Truth(line | {"loop_gaps"}, "loop")
    if collective := _collective(graph, node):
        return _exchanged(graph, collective, line)
    inside = graph.inside(node) if node.opcode == "fusion" else []
    products = [source.of(m.op_name, m.frames) for m in inside if m.opcode in _PRODUCTS]
    if node.opcode in _PRODUCTS:
        products = [line]
    if products:
        products += [source.of(m.op_name, m.frames) for m in _slices(graph, node.name)]
    if found := NONE.union(*products):
        return Truth(found - {"expert_elementwise"} or found, "product")
    if line:
        return Truth(line, "line")
    parts = (source.of(m.op_name, m.frames) for m in inside)
    return Truth(next((part for part in parts if part), NONE), "part")


def _slices(graph: Graph, name: str) -> Iterator[Node]:
    """Slices that are taken of a result, by its users or inside of them."""
    for user in graph.users[name]:
        if user.opcode in ("get-tuple-element", "bitcast"):
            yield from _slices(graph, user.name)
        elif user.opcode == "slice":
            yield user
        elif user.opcode == "fusion":
            given = [
                m
                for m in graph.inside(user)
                if m.opcode == "parameter" and user.operands[m.parameter] == name
            ]
            yield from (s for m in given for s in graph.users[m.name] if s.opcode == "slice")


def _completed(graph: Graph, own: dict[str, Truth], name: str) -> Truth:
    found = own[name]
    if found.components and found.by == "part":
        return Truth(found.components | _nearest(graph, own, graph.after, name), "part")
    if found.components and found.by != "unasked":
        return found
    made_of = functools.partial(_made_of, graph)
    near = _nearest(graph, own, graph.after, name) | _nearest(graph, own, made_of, name)
    if found.by == "unasked":
        return Truth(_ways(near), "collective")
    return Truth(near, "neighbour" if near else "none")


def _made_of(graph: Graph, value: Value) -> list[Value]:
    """What a value is made of, small operands left out."""
    found = [(each, _elements(graph.nodes[each[0]].shape)) for each in graph.before(value)]
    most = max((size for _, size in found), default=0)
    return [each for each, size in found if 4 * size >= most]


def _nearest(
    graph: Graph,
    own: dict[str, Truth],
    following: Callable[[Value], Iterable[Value]],
    start: str,
) -> Components:
    """Components of the nearest ops with a truth in one direction."""
    waiting: deque[tuple[Value, int]] = deque([((start, None), 1)])
    seen = {(start, None)}
    found, nearest = NONE, _FARTHEST
    while waiting and waiting[0][1] <= nearest:
        value, distance = waiting.popleft()
        for follower in following(value):
            if follower in seen or follower[0] not in own:
                continue
            seen.add(follower)
            components, by = own[follower[0]]
            is_passage = graph.nodes[follower[0]].opcode in _PASSAGES
            if by == "collective" or (components and not is_passage and by != "unasked"):
                found |= components
            if is_passage or by in ("collective", "unasked"):
                waiting.appendleft((follower, distance))
            elif components:
                nearest = distance
            else:
                waiting.append((follower, distance + 1))
    return found


def _collective(graph: Graph, node: Node) -> Node | None:
    """The collective that an op is, wraps, or ends; None for any other op."""
    if node.opcode.endswith("-done") and node.operands:
        node = graph.nodes.get(node.operands[0], node)
    if node.opcode == "async-start":
        node = graph.root(node.called[0]) or node
    if node.base in COLLECTIVES:
        return node
    inside = graph.inside(node) if node.opcode == "fusion" else []
    return next((member for member in inside if member.base in COLLECTIVES), None)


def _exchanged(graph: Graph, node: Node, line: Components) -> Truth:
    if line & _EXCHANGES and _ASKED.search(node.op_name):
        return Truth(line, "collective")
    if node.base == "all-gather" and all(_is_weight(graph, name) for name in node.operands):
        return Truth(frozenset({"weight_gather"}), "collective")
    if _sums_gradients(graph, node):
        return Truth(frozenset({"gradient_reduce"}), "collective")
    return Truth(_ways(line), "collective" if line else "unasked")


def _ways(line: Components) -> Components:
    ways = {} if "router" in line else {"permute": "dispatch", "unpermute": "combine"}
    return line | {"collectives"} | {way for part, way in ways.items() if part in line}


def _is_weight(graph: Graph, name: str) -> bool:
    """Whether a value is a view of a parameter of the program, a float of two dims or more."""
    waiting: list[Value] = [(name, None)]
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        node = graph.nodes[value[0]]
        if node.opcode == "parameter" and node.computation not in graph.callers:
            dtype, dims = _arrays(node.shape)[0]
            return bool(_FLOAT.match(dtype)) and len(dims) > 1
        if not _is_view(graph, node):
            return False
        fresh = [v for v in graph.before(value) if v not in seen]
        fresh.sort(key=lambda v: _elements(graph.nodes[v[0]].shape))  # an index is small
        waiting += fresh
        seen.update(fresh)
    return False


def _is_view(graph: Graph, node: Node) -> bool:
    inside = graph.inside(node) if node.opcode == "fusion" else [node]
    return all(
        m.opcode in _VIEWS or (m.opcode in _INDEX_ARITHMETIC and _elements(m.shape) == 1)
        for m in inside
    )


def _sums_gradients(graph: Graph, node: Node) -> bool:
    if node.base not in ("all-reduce", "reduce-scatter"):
        return False
    names = [node.op_name, *(graph.nodes[name].op_name for name in node.operands)]
    if any(names) and not any("transpose(" in n and "/rematted" not in n for n in names):
        return False
    weights = _weight_dims(graph)
    devices = len(node.groups.partition("}")[0].split(",")) if node.groups else 0
    parts = [_arrays(graph.nodes[name].shape)[0][1] for name in node.operands]
    sizes = [math.prod(dims) for dims in parts]
    fits = [any(_is_shard(dims, each, devices) for each in weights) for dims in parts]
    return sum(s for s, fit in zip(sizes, fits, strict=True) if fit) * 2 > sum(sizes)


@functools.lru_cache(maxsize=2)
def _weight_dims(graph: Graph) -> set[tuple[int, ...]]:
    """Dims of each weight and of one layer of a stack, whichever dim counts layers, sorted."""
    found = set()
    for node in graph.nodes.values():
        if node.opcode == "parameter" and node.computation not in graph.callers:
            for dtype, dims in _arrays(node.shape):
                if _FLOAT.match(dtype):
                    layers = (_plain((*dims[:at], *dims[at + 1 :])) for at in range(len(dims)))
                    found |= {_plain(dims), *layers}
    return found - {()}


def _is_shard(dims: tuple[int, ...], weight: tuple[int, ...], devices: int) -> bool:
    """Whether two arrays are the same or one a shard of the other; 0 devices are any number."""
    here, there = list(_plain(dims)), list(weight)
    for size in _plain(dims):
        if size in there:
            here.remove(size)
            there.remove(size)
    if len(here) != 1 or len(there) != 1:
        return not here and not there
    small, large = sorted((*here, *there))
    return large == small * devices if devices else large % small == 0


def _plain(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(d for d in dims if d != 1))


def _arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    found = _ARRAY.findall(shape)
    return [(t, tuple(int(d) for d in dims.split(",") if d)) for t, dims in found] or [("", ())]


def _elements(shape: str) -> int:
    return sum(math.prod(dims) for _, dims in _arrays(shape))
