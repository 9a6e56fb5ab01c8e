"""Which listed buffers hold rows of tokens for the experts, so that fewer rows make them smaller?

Weights of the experts, their gradients and copies lie in the same scopes and keep their size. Rows
are told by what moves them (dispatch, combine, permutation), or as matrices of rows by a width of
the model: a matrix between two widths is a weight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from moeprof.analyzers.classify.components import MOE
from moeprof.analyzers.heap.contents import DENSE_FALLBACK, dims_of

CAPACITY_EINSUM = re.compile(r"BSEC|EBCM|BSM,BSEC")
"""Products of a capacity-based dispatch: each expert has a block of rows of its own."""
_MOVES_ROWS = frozenset({"dispatch", "combine", "permute", "unpermute"})
_RECEIVED = "receive buffers"
_NO_ROWS = frozenset({"arguments", "weights", "gradients", "gathered weights", "optimizer state"})


def of_rows(buffers: pd.DataFrame) -> pd.Series:
    """Which rows of `LISTED` are buffers of token rows."""
    of_moe = buffers["component"].isin(sorted(MOE)) & ~buffers["content"].isin(
        [DENSE_FALLBACK, *_NO_ROWS]
    )
    dims = [_without_ones(dims_of(str(shape))) for shape in buffers["shape"]]
    is_argument = buffers["content"].eq("arguments").tolist()
    of_arguments = {d for d, held in zip(dims, is_argument, strict=True) if held}
    moved = (buffers["component"].isin(sorted(_MOVES_ROWS)) | buffers["content"].eq(_RECEIVED)) & (
        of_moe
    )
    names = buffers["op_name"].astype(str).tolist()
    phases = buffers["phase"].astype(str).tolist()
    known = {d[0] for d, is_moved in zip(dims, moved, strict=True) if is_moved and len(d) == 2}
    known |= {
        d[0]
        for d, phase, is_moe in zip(dims, phases, of_moe, strict=True)
        if is_moe and phase in ("forward", "recompute") and _is_tall(d, of_arguments)
    }
    widths = {d[-1] for d, is_moe in zip(dims, of_moe, strict=True) if is_moe and d}
    told = [
        is_moved or _has_rows(d, name, known, widths, of_arguments)
        for d, name, is_moved in zip(dims, names, moved, strict=True)
    ]
    return of_moe & pd.Series(told, index=buffers.index, dtype=bool)


def _has_rows(
    dims: Sequence[int],
    name: str,
    known: set[int],
    widths: set[int],
    of_arguments: set[tuple[int, ...]],
) -> bool:
    if len(dims) < 2 or _is_weight(tuple(dims), widths - known, of_arguments):
        return False
    if CAPACITY_EINSUM.search(name):
        return True
    return dims[0] in known and len(dims) == 2


def _is_weight(dims: tuple[int, ...], widths: set[int], of_arguments: set[tuple[int, ...]]) -> bool:
    """Whether an array is a weight, or a stack of them: of one's dimensions, or between widths."""
    is_of_argument = any(held[-len(dims) :] == dims for held in of_arguments)
    return is_of_argument or (dims[-1] in widths and dims[-2] in widths)


def _is_tall(dims: Sequence[int], of_arguments: set[tuple[int, ...]]) -> bool:
    """Whether a matrix may be rows: of no argument's dimensions."""
    return len(dims) == 2 and not any(held[-2:] == tuple(dims) for held in of_arguments)


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)
