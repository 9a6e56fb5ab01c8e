"""How gathers and scatters say their dimensions, in HLO and in jax.lax."""

from __future__ import annotations

from moeprof.hlo.attributes import GatherDims, ScatterDims
from moeprof.hlo.program import Op
from moeprof.hlo.shape import Shape
from moeprof.replay.refusal import refused


def gather_dims(op: Op) -> GatherDims:
    """The dimensions of a gather.

    Raises:
        ReplayError: it does not say them.
    """
    return op.attributes.gather or refused(op, "does not say its dimensions")


def scatter_dims(op: Op) -> ScatterDims:
    """The dimensions of a scatter.

    Raises:
        ReplayError: it does not say them.
    """
    return op.attributes.scatter or refused(op, "does not say its dimensions")


def gather_numbers(dims: GatherDims) -> str:
    """The dimensions as an expression of the script."""
    return (
        f"lax.GatherDimensionNumbers({dims.offset_dims}, {dims.collapsed}, "
        f"{dims.start_map}, {dims.operand_batching}, {dims.indices_batching})"
    )


def scatter_numbers(dims: ScatterDims) -> str:
    """The dimensions as an expression of the script."""
    return (
        f"lax.ScatterDimensionNumbers({dims.update_window}, {dims.inserted}, "
        f"{dims.to_operand}, {dims.input_batching}, {dims.indices_batching})"
    )


def index_flags(op: Op) -> str:
    """What the program promises of the indices, as arguments."""
    said = op.attributes
    flags = {"indices_are_sorted": said.is_sorted, "unique_indices": said.is_unique}
    given = "".join(f", {name}=True" for name, is_set in flags.items() if is_set)
    return f"{given}, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS"


def update_sizes(op: Op, operand: Shape, updates: Shape) -> list[int]:
    """Size of a scatter's window in each dimension of the operand."""
    dims = scatter_dims(op)
    hidden = {*dims.inserted, *dims.input_batching}
    window = iter(dims.update_window)
    return [1 if d in hidden else updates.dims[next(window)] for d in range(len(operand.dims))]
