"""Question: which JAX code computes what an HLO instruction computes?

Each computation becomes a function, each instruction a line of it, in terms of jax.lax, whose
functions are HLO's operations. What has no such line is refused by name: code that computes
something else would time something else.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field
from math import isfinite

from moeprof.errors import ReplayError
from moeprof.hlo.program import Op, Program
from moeprof.hlo.shape import Shape
from moeprof.replay.terms import (
    COMPARE,
    LEVELS,
    SAME,
    array_of,
    custom_call,
    gather_dims,
    gather_numbers,
    index_flags,
    jnp_type,
    precision,
    refused,
    scatter_dims,
    scatter_numbers,
    update_sizes,
)

_PASSES_ON = frozenset(
    {"bitcast", "reshape", "convert", "copy", "broadcast", "slice", "transpose", "concatenate"}
    | {"select", "add", "clamp", "maximum", "minimum", "get-tuple-element", "tuple", "call"}
)
_SCATTERS = {
    **{"add": "scatter_add", "multiply": "scatter_mul"},
    **{"minimum": "scatter_min", "maximum": "scatter_max"},
}
_RESERVED = frozenset({"jax", "jnp", "lax", "np", "run", "inputs", "main", "tuple", "iter"})


@dataclass
class Translation:
    """Functions written so far; `bounds` are the index limits that a computation sets its inputs.

    An input of whole numbers that is used as an index must stay below its bound.
    """

    program: Program
    functions: dict[str, list[str]] = field(default_factory=dict)
    bounds: dict[str, dict[int, int]] = field(default_factory=dict)
    opcodes: set[str] = field(default_factory=set)

    def function(self, computation: str) -> str:
        """Name of the function of a computation, written when it is first asked for.

        Raises:
            ReplayError: some instruction in it has no translation.
        """
        name = f"f_{identifier(computation)}"
        if name in self.functions:
            return name
        inside = self.program.members[computation]
        parameters = sorted((o for o in inside if o.opcode == "parameter"), key=_number)
        origin = {o.name: {o.parameter} for o in parameters}
        bounds: dict[int, int] = {}
        lines = [f"def {name}({', '.join(identifier(o.name) for o in parameters)}):"]
        for op in inside:
            if op.opcode != "parameter":
                lines.append(f"    {identifier(op.name)} = {self.expression(op)}")
                self._note_bounds(op, origin, bounds)
        (root,) = (o for o in inside if o.is_root)
        self.functions[name] = [*lines, f"    return {identifier(root.name)}"]
        self.bounds[name] = bounds
        return name

    def expression(self, op: Op) -> str:
        """The right-hand side of an instruction's line.

        Raises:
            ReplayError: it has no translation.
        """
        self.opcodes.add(op.opcode)
        names = [identifier(name) for name in op.operands]
        if op.opcode in SAME:
            return f"lax.{SAME[op.opcode]}({', '.join(names)})"
        written = _WRITERS.get(op.opcode)
        if written is None:
            raise ReplayError(f"{op.name} has opcode {op.opcode}, which has no translation")
        return written(self, op, names)

    def operand(self, op: Op, place: int) -> Shape:
        """The array that an operand is."""
        return array_of(self.program.ops[op.operands[place]].result)

    def bounds_of(self, op: Op) -> dict[int, int]:
        """Place of an operand that holds indices -> what they must stay below."""
        if op.opcode in ("gather", "scatter"):
            operand = self.operand(op, 0)
            if op.opcode == "gather":
                mapped, sizes = gather_dims(op).start_map, gather_dims(op).sizes
            else:
                mapped = scatter_dims(op).to_operand
                sizes = tuple(update_sizes(op, operand, self.operand(op, 2)))
            room = [operand.dims[d] - sizes[d] + 1 for d in mapped]
            return {1: min(room, default=1)}
        if op.opcode == "dynamic-slice":
            whole, part = self.operand(op, 0).dims, array_of(op.result).dims
            return {1 + d: whole[d] - part[d] + 1 for d in range(len(whole))}
        if op.opcode == "dynamic-update-slice":
            whole, part = self.operand(op, 0).dims, self.operand(op, 1).dims
            return {2 + d: whole[d] - part[d] + 1 for d in range(len(whole))}
        if op.opcode in ("fusion", "call"):
            return self.bounds[self.function(op.called[0])]
        return {}

    def _note_bounds(self, op: Op, origin: dict[str, set[int]], bounds: dict[int, int]) -> None:
        if op.opcode in _PASSES_ON:
            origin[op.name] = set().union(*(origin.get(name, set()) for name in op.operands))
        for place, bound in self.bounds_of(op).items():
            for parameter in origin.get(op.operands[place], ()):
                bounds[parameter] = min(bound, bounds.get(parameter, bound))


def identifier(name: str) -> str:
    """An HLO name as a name of Python. Distinct names of one program stay distinct."""
    found = re.sub(r"\W", lambda m: "_" if m[0] in ".-" else f"_x{ord(m[0]):x}_", name)
    is_taken = keyword.iskeyword(found) or keyword.issoftkeyword(found) or found in _RESERVED
    return f"v_{found}" if is_taken or not found[:1].isalpha() else found


def _number(op: Op) -> int:
    return op.parameter


def _fusion(t: Translation, op: Op, names: list[str]) -> str:
    return f"{t.function(op.called[0])}({', '.join(names)})"


def _while(t: Translation, op: Op, names: list[str]) -> str:
    inside = [t.program.members[name] for name in op.called]
    roots = [next(o for o in part if o.is_root) for part in inside]
    condition = next(n for n, root in enumerate(roots) if root.shape == "pred[]")
    body = t.function(op.called[1 - condition])
    return f"lax.while_loop({t.function(op.called[condition])}, {body}, {names[0]})"


def _tuple(t: Translation, op: Op, names: list[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names).strip()})"


def _element(t: Translation, op: Op, names: list[str]) -> str:
    return f"{names[0]}[{op.attributes.tuple_index}]"


def _constant(t: Translation, op: Op, names: list[str]) -> str:
    said = op.attributes
    value = said.constant if said.literal is None else said.literal
    if value is None:
        raise ReplayError(f"{op.name} is a constant {op.shape}: the trace keeps only scalars")
    text = repr(value) if isfinite(value) else f'float("{value}")'
    return f"jnp.asarray({text}, {jnp_type(op.result)})"


def _broadcast(t: Translation, op: Op, names: list[str]) -> str:
    return (
        f"lax.broadcast_in_dim({names[0]}, {array_of(op.result).dims}, {op.attributes.dimensions})"
    )


def _transpose(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.transpose({names[0]}, {op.attributes.dimensions})"


def _reshape(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.reshape({names[0]}, {array_of(op.result).dims})"


def _bitcast(t: Translation, op: Op, names: list[str]) -> str:
    """The same memory under another shape: out of one order of dimensions into the other."""
    before, after = t.operand(op, 0), array_of(op.result)
    if before.dtype != after.dtype:
        return (
            f"lax.bitcast_convert_type({names[0]}, {jnp_type(after)})"
            if before.dims == after.dims and not before.layout and not after.layout
            else refused(op, f"casts {before.dtype} to {after.dtype} and its shape")
        )
    text = f"lax.transpose({names[0]}, {before.stored_order})" if before.layout else names[0]
    if before.stored_dims != after.stored_dims:
        text = f"lax.reshape({text}, {after.stored_dims})"
    return f"lax.transpose({text}, {inverse(after.stored_order)})" if after.layout else text


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    return tuple(order.index(place) for place in range(len(order)))


def _convert(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.convert_element_type({names[0]}, {jnp_type(op.result)})"


def _bitcast_convert(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.bitcast_convert_type({names[0]}, {jnp_type(op.result)})"


def _compare(t: Translation, op: Op, names: list[str]) -> str:
    if op.attributes.comparison == "TOTALORDER" and not t.operand(op, 0).is_whole:
        refused(op, "orders all bit patterns of floats")
    return f"lax.{COMPARE[op.attributes.direction]}({', '.join(names)})"


def _round(t: Translation, op: Op, names: list[str]) -> str:
    how = {"round-nearest-even": "TO_NEAREST_EVEN", "round-nearest-afz": "AWAY_FROM_ZERO"}
    return f"lax.round({names[0]}, lax.RoundingMethod.{how[op.opcode]})"


def _reduce_precision(t: Translation, op: Op, names: list[str]) -> str:
    said = op.attributes
    bits = (max(said.exponent_bits, 0), max(said.mantissa_bits, 0))
    return f"lax.reduce_precision({names[0]}, {bits[0]}, {bits[1]})"


def _iota(t: Translation, op: Op, names: list[str]) -> str:
    dimension = (op.attributes.dimensions or (0,))[0]
    return f"lax.broadcasted_iota({jnp_type(op.result)}, {array_of(op.result).dims}, {dimension})"


def _concatenate(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.concatenate([{', '.join(names)}], {(op.attributes.dimensions or (0,))[0]})"


def _reverse(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.rev({names[0]}, {op.attributes.dimensions})"


def _slice(t: Translation, op: Op, names: list[str]) -> str:
    starts, limits, strides = zip(*op.attributes.slices, strict=True)
    return f"lax.slice({names[0]}, {starts}, {limits}, {tuple(s or 1 for s in strides)})"


def _dynamic_slice(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.dynamic_slice({names[0]}, [{', '.join(names[1:])}], {array_of(op.result).dims})"


def _dynamic_update_slice(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.dynamic_update_slice({names[0]}, {names[1]}, [{', '.join(names[2:])}])"


def _pad(t: Translation, op: Op, names: list[str]) -> str:
    return f"lax.pad({names[0]}, {names[1]}, {list(op.attributes.padding)})"


def _dot(t: Translation, op: Op, names: list[str]) -> str:
    if op.attributes.algorithm:
        refused(op, f"uses algorithm {op.attributes.algorithm}")
    dims = op.attributes.dot
    contracted = (dims.lhs_contracting, dims.rhs_contracting)
    batch = (dims.lhs_batch, dims.rhs_batch)
    return (
        f"lax.dot_general({names[0]}, {names[1]}, ({contracted}, {batch}){_precision(op)}, "
        f"preferred_element_type={jnp_type(op.result)})"
    )


def _precision(op: Op) -> str:
    numbers = op.attributes.precision
    return precision(op, [LEVELS[n] if n < len(LEVELS) else str(n) for n in numbers])


def _ragged_dot(t: Translation, op: Op, names: list[str]) -> str:
    dims = op.attributes.dot
    contracted = (dims.lhs_contracting, dims.rhs_contracting)
    batch = (dims.lhs_batch, dims.rhs_batch)
    return (
        f"lax.ragged_dot_general({', '.join(names)}, lax.RaggedDotDimensionNumbers("
        f"({contracted}, {batch}), {list(dims.lhs_ragged)}, {list(dims.rhs_group)})"
        f"{_precision(op)}, preferred_element_type={jnp_type(op.result)})"
    )


def _indices(t: Translation, op: Op, name: str, axis: int) -> str:
    """Indices with their vectors along the last axis, as jax.lax wants them."""
    dims = t.operand(op, 1).dims
    if axis == len(dims):
        return f"jnp.expand_dims({name}, -1)"
    return name if axis == len(dims) - 1 else f"jnp.moveaxis({name}, {axis}, -1)"


def _gather(t: Translation, op: Op, names: list[str]) -> str:
    dims = gather_dims(op)
    index = _indices(t, op, names[1], dims.index_vector)
    numbers = gather_numbers(dims)
    return f"lax.gather({names[0]}, {index}, {numbers}, {dims.sizes}{index_flags(op)})"


def _scatter(t: Translation, op: Op, names: list[str]) -> str:
    if len(names) != 3:
        refused(op, "updates several arrays at once")
    inside = t.program.members[op.called[0]]
    root = next(o for o in inside if o.is_root)
    if root.opcode == "parameter" and root.parameter == 1:
        function = "scatter"
    elif root.opcode in _SCATTERS and len(inside) == 3:
        function = _SCATTERS[root.opcode]
    else:
        refused(op, f"combines by {root.opcode} and more")
    dims = scatter_dims(op)
    index = _indices(t, op, names[1], dims.index_vector)
    numbers = scatter_numbers(dims)
    return f"lax.{function}({names[0]}, {index}, {names[2]}, {numbers}{index_flags(op)})"


def _reduce(t: Translation, op: Op, names: list[str]) -> str:
    half = len(names) // 2
    function, dimensions = t.function(op.called[0]), op.attributes.dimensions
    if half == 1:
        return f"lax.reduce({names[0]}, {names[1]}, {function}, {dimensions})"
    values, starts = (", ".join(part) for part in (names[:half], names[half:]))
    step = f"lambda a, b: {function}(*a, *b)"
    return f"lax.reduce(({values}), ({starts}), {step}, {dimensions})"


def _reduce_window(t: Translation, op: Op, names: list[str]) -> str:
    if len(names) != 2:
        refused(op, "reduces several arrays at once")
    size, stride, low, high, dilation, base, is_reversed = zip(*op.attributes.window, strict=True)
    if any(is_reversed):
        refused(op, "reverses its window")
    padding = list(zip(low, high, strict=True))
    return (
        f"lax.reduce_window({names[0]}, {names[1]}, {t.function(op.called[0])}, {size}, {stride}, "
        f"{padding}, base_dilation={base}, window_dilation={dilation})"
    )


def _sort(t: Translation, op: Op, names: list[str]) -> str:
    if not _is_ascending(t.program.members[op.called[0]]):
        refused(op, "compares by more than its first array, ascending")
    dimension, is_stable = (op.attributes.dimensions or (0,))[0], op.attributes.is_stable
    how = f"dimension={dimension}, is_stable={is_stable}, num_keys=1"
    if len(names) == 1:
        return f"lax.sort({names[0]}, dimension={dimension}, is_stable={is_stable})"
    return f"lax.sort(({', '.join(names)}), {how})"


def _is_ascending(comparator: list[Op]) -> bool:
    """Whether it is a < b of the first array, or what JAX makes of it for floats.

    JAX replaces −0 by 0 and every NaN by one, with selects, before it compares.
    """
    by_name = {o.name: o for o in comparator}
    root = next(o for o in comparator if o.is_root)

    def parameters(name: str) -> set[int]:
        op = by_name[name]
        if op.opcode == "parameter":
            return {op.parameter}
        return set().union(*(parameters(n) for n in op.operands))

    plain = {"parameter", "constant", "select", "compare"}
    if root.opcode != "compare" or root.attributes.direction != "LT":
        return False
    is_plain = all(o.opcode in plain for o in comparator)
    return is_plain and [parameters(name) for name in root.operands] == [{0}, {1}]


def _top_k(t: Translation, op: Op, names: list[str]) -> str:
    return f"tuple(lax.top_k({names[0]}, {array_of(op.result.first).dims[-1]}))"


def _copy(t: Translation, op: Op, names: list[str]) -> str:
    return names[0]


def _custom_call(t: Translation, op: Op, names: list[str]) -> str:
    if op.target == "TopK":
        return _top_k(t, op, names)
    return custom_call(op, names, [t.operand(op, n) for n in range(len(names))])


_WRITERS = {
    **{"fusion": _fusion, "call": _fusion, "while": _while, "tuple": _tuple},
    **{"get-tuple-element": _element, "constant": _constant, "broadcast": _broadcast},
    **{"transpose": _transpose, "reshape": _reshape, "bitcast": _bitcast, "convert": _convert},
    **{"bitcast-convert": _bitcast_convert, "compare": _compare, "iota": _iota, "copy": _copy},
    **{"round-nearest-even": _round, "round-nearest-afz": _round, "reverse": _reverse},
    **{"reduce-precision": _reduce_precision, "concatenate": _concatenate, "slice": _slice},
    **{"dynamic-slice": _dynamic_slice, "dynamic-update-slice": _dynamic_update_slice},
    **{"pad": _pad, "dot": _dot, "ragged-dot": _ragged_dot, "gather": _gather},
    **{"scatter": _scatter, "reduce": _reduce, "reduce-window": _reduce_window, "sort": _sort},
    "custom-call": _custom_call,
}
