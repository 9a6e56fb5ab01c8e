"""Question: which collective of jax.lax is an HLO collective, over one axis of devices?

The script runs one group: its devices form the axis ``x``.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.errors import ReplayError
from moeprof.hlo.program import Op, Program

EXCHANGES = (
    *("all-gather", "all-reduce", "all-to-all", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
)
_REDUCED = {"add": "psum", "maximum": "pmax", "minimum": "pmin"}


def group_size(op: Op, devices: int) -> int:
    """Devices that take part together, of the `devices` of the program.

    Raises:
        ReplayError: groups differ in size.
    """
    if op.opcode == "collective-permute":
        return devices
    sizes = set(map(len, op.groups)) or {devices}
    if len(sizes) > 1:
        raise ReplayError(f"{op.name} ({op.opcode}) has groups of different sizes: not translated")
    return sizes.pop()


def exchange(op: Op, names: Sequence[str], program: Program) -> str:
    """The expression of a collective on one device of the axis ``x``.

    Raises:
        ReplayError: it combines by something that jax.lax has no collective for.
    """
    axis = (op.attributes.dimensions or (0,))[0]
    if op.opcode == "ragged-all-to-all":
        return f'lax.ragged_all_to_all({", ".join(names)}, axis_name="x")'
    if op.opcode == "all-to-all" and len(names) > 1:
        stacked = f'lax.all_to_all(jnp.stack([{", ".join(names)}]), "x", 0, 0)'
        return f"tuple({stacked}[n] for n in range({len(names)}))"
    if op.opcode == "all-gather":
        each = [f'lax.all_gather({name}, "x", axis={axis}, tiled=True)' for name in names]
    elif op.opcode == "all-to-all":
        each = [f'lax.all_to_all({name}, "x", {axis}, {axis}, tiled=True)' for name in names]
    elif op.opcode == "collective-permute":
        each = [f'lax.ppermute({name}, "x", {list(op.pairs)})' for name in names]
    else:
        each = [_reduced(op, name, program, axis) for name in names]
    return f"({', '.join(each)},)" if op.result.is_tuple else each[0]


def _reduced(op: Op, name: str, program: Program, axis: int) -> str:
    inside = program.members[op.called[0]]
    root = next(o for o in inside if o.is_root)
    if root.opcode not in _REDUCED or len(inside) != 3:
        raise ReplayError(f"{op.name} ({op.opcode}) combines by {root.opcode}: not translated")
    if op.opcode == "all-reduce":
        return f'lax.{_REDUCED[root.opcode]}({name}, "x")'
    if root.opcode != "add":
        raise ReplayError(f"{op.name} ({op.opcode}) combines by {root.opcode}: not translated")
    return f'lax.psum_scatter({name}, "x", scatter_dimension={axis}, tiled=True)'
