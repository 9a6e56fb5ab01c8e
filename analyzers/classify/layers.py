"""Question: in which kind of layer does an op work, and in which one by number?

Some parts stand in one place only: experts in a MoE layer, a feed-forward network in a dense one,
the table of tokens before all layers. What stands in every layer, such as attention, belongs to
the layer whose scope, loop or function it shares: contexts in which the ops of one kind of layer
stand and those of no other. A helper that attention calls as well is no such context.

The kinds are ``embedding`` (before the layers), ``dense_layer``, ``moe_layer``, ``layer`` (whether
it has experts could not be told), ``head`` (after the layers: output projection and loss),
``optimizer`` (with clipping and gradient norm) and ``outside`` (none of these, as far as known).

Numbers are those of names: ``…/layers_7/moe/…``, ``…/layers[7]/…``, ``…/h/7/mlp/…``,
``…/DecoderLayer_7/…``. Layers that a loop runs one after the other have no number: the loop's ops
are those of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from moeprof.analyzers.classify.components import MOE
from moeprof.analyzers.classify.names import scopes
from moeprof.analyzers.classify.values import Flow
from moeprof.analyzers.classify.votes import spread
from moeprof.hlo.program import Op, Program

_OF_COMPONENT = {
    **dict.fromkeys(MOE | {"shared_expert"}, "moe_layer"),
    "dense_mlp": "dense_layer",
    "embedding": "embedding",
    "head": "head",
    "loss": "head",
    "optimizer": "optimizer",
}
_IN_EVERY_LAYER = frozenset({"attention", "norm"})
_Context = tuple[str, ...]


class _Seen(NamedTuple):
    """Contexts that lead to one kind of layer alone; which kinds of layers there are."""

    kind_of: Mapping[_Context, str]
    layers: frozenset[str]


def layer_kinds(
    program: Program,
    flow: Flow,
    labels: Mapping[str, tuple[str, str]],
    ops: Sequence[Op],
    guessed: Container[str] = (),
) -> dict[str, str]:
    """Kind of layer of each of `ops`, those that run by themselves.

    `labels` are (component, phase) of the ops that have a component; where it is that of neighbours
    alone, as of those in `guessed`, it does not say what stands in a context.
    """
    places: dict[tuple[object, ...], list[_Context]] = {}
    contexts = {}
    for op in ops:
        place = (op.op_name, op.computation, op.frames)
        if place not in places:
            places[place] = list(_contexts(program, op))
        contexts[op.name] = places[place]
    seen = _seen(contexts, {n: label for n, label in labels.items() if n not in guessed})
    found: dict[str, str] = {}
    for name, own in contexts.items():
        component = labels[name][0] if name in labels else ""
        kind = _OF_COMPONENT.get(component) or _nearest(own, seen)
        if kind is None and component == "attention":
            kind = next(iter(seen.layers)) if len(seen.layers) == 1 else "layer"
        if kind is not None:
            found[name] = kind
    decided = {name: (kind, "") for name, kind in found.items()}
    open_ops = [op for op in ops if op.name not in decided]
    voted, _ = spread(program, flow, decided, open_ops)
    return found | {name: kind for name, (kind, _) in voted.items()}


def _seen(contexts: Mapping[str, list[_Context]], labels: Mapping[str, tuple[str, str]]) -> _Seen:
    """Contexts of the ops whose component has one place, less those that several kinds share."""
    kind_of: dict[_Context, str | None] = {}
    layers: set[str] = set()
    for name, (component, _) in labels.items():
        kind = _OF_COMPONENT.get(component)
        if kind is None:
            continue
        if kind in ("moe_layer", "dense_layer"):
            layers.add(kind)
        for context in contexts[name]:
            if kind_of.setdefault(context, kind) != kind:
                kind_of[context] = None
    for helper in _helpers(contexts, labels, kind_of):
        kind_of[helper] = None
    own = {c: kind for c, kind in kind_of.items() if kind in ("moe_layer", "dense_layer")}
    return _Seen(own, frozenset(layers))


def _helpers(
    contexts: Mapping[str, list[_Context]],
    labels: Mapping[str, tuple[str, str]],
    kind_of: Mapping[_Context, str | None],
) -> set[_Context]:
    """Functions that one kind of layer calls from a part of its own, and attention from its own.

    A function around both, such as a layer's, is called by neither. JAX joins tracebacks, so that a
    chain may name functions again: the first time counts.
    """
    shared = {
        context
        for name, (component, _) in labels.items()
        if component in _IN_EVERY_LAYER
        for context in contexts[name]
    }
    chains = {
        tuple(dict.fromkeys(c for c in contexts[name] if c[0] == "function"))
        for name, (component, _) in labels.items()
        if component in _OF_COMPONENT
    }
    found: set[_Context] = set()
    for chain in chains:
        own = [at for at, c in enumerate(chain) if kind_of.get(c) is not None and c not in shared]
        found |= {c for c in chain[: max(own, default=0)] if c in shared}
    return found


def _nearest(contexts: list[_Context], seen: _Seen) -> str | None:
    return next((seen.kind_of[c] for c in contexts if c in seen.kind_of), None)


def _contexts(program: Program, op: Op) -> Iterator[_Context]:
    """Where an op stands: its scopes, then its loops, then its functions, innermost first."""
    for path in scopes(op.op_name):
        for at in range(len(path), 0, -1):
            if path[at - 1] not in ("body", "cond"):
                yield ("scope", path[at - 1])
    computation = op.computation
    while (caller := program.ops.get(program.callers.get(computation, ""))) is not None:
        if caller.opcode == "while":
            yield ("loop", computation)
        computation = caller.computation
    for frame in op.frames:
        yield ("function", frame.file, frame.function)


# words as `(?:[a-z]+_)*` end in one way alone: no name takes longer than its length
_WORD = r"(?:[a-z]+_)*[a-z]*(?:layers?|blocks?)|h|\w*(?:Layer|Block)"
_NUMBERED = re.compile(rf"({_WORD})[_.\[]?(\d+)\]?")
_ALONE = re.compile(_WORD)
_PART_OF_LAYER = re.compile(r"(?i)moe|mixture|expert|mlp|ffn|attention|norm")


def layer_number(op_name: str) -> int | None:
    """The number of the outermost counted layer in a scope path; None where none is told.

    ``MoeBlock_0`` is Flax's first module of a kind inside a layer, not layer 0.
    """
    for path in scopes(op_name):
        for element, following in pairwise([*path, ""]):
            found = _NUMBERED.fullmatch(element)
            if found and not _is_part_of_layer(found[1]):
                return int(found[2])
            if following.isdecimal() and _ALONE.fullmatch(element):
                return int(following)
    return None


def _is_part_of_layer(word: str) -> bool:
    """Whether a class name (with capitals) is that of a module inside a layer."""
    return word != word.lower() and bool(_PART_OF_LAYER.search(word))
