"""Question: which ops of two runs are the same op?

Ops are matched from what says most to what says least: in each round those left that share a key
with one left on the other side are one row. What shares none was only there in one run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

_ROUNDS = (
    ("same", ["component", "phase", "scope", "op", "shape", "operand_shapes"]),
    ("other scope", ["component", "phase", "op", "shape", "operand_shapes"]),
    ("other shape", ["component", "phase", "scope", "op"]),
    ("other scope and shape", ["component", "phase", "op"]),
    ("same kernel", ["component", "phase", "role", "family"]),
)
ONLY_BASE, ONLY_NEW = "only in base", "only in new"
_NAMES = ("scope", "op", "shape")


@dataclass(frozen=True)
class Alignment:
    """Rows of a comparison, and the row of each op of the two sides, int64.

    ``rows`` has component, phase, scope, op, shape (``a → b`` where they differ, empty where they
    are several), and how they were matched.
    """

    rows: pd.DataFrame
    base: np.ndarray
    new: np.ndarray


def aligned(base: pd.DataFrame, new: pd.DataFrame) -> Alignment:
    """Match the rows of `SIDE_OPS` of two runs."""
    places = (np.full(len(base), -1), np.full(len(new), -1))
    match: list[str] = []
    for name, keys in _ROUNDS:
        _settle(base, new, places, keys, match, name)
    for ops, place, name in ((base, places[0], ONLY_BASE), (new, places[1], ONLY_NEW)):
        left = np.flatnonzero(place < 0)
        own = ops.iloc[left].groupby(_ROUNDS[0][1], sort=True).ngroup().to_numpy()
        place[left] = own + len(match)
        match += [name] * (int(own.max(initial=-1)) + 1)
    return Alignment(_described(base, new, places, match), *places)


def _settle(
    base: pd.DataFrame,
    new: pd.DataFrame,
    places: tuple[np.ndarray, np.ndarray],
    keys: list[str],
    match: list[str],
    name: str,
) -> None:
    """Number the keys that both sides have left, behind the rows that there are."""
    left = [np.flatnonzero(place < 0) for place in places]
    sides = [ops.iloc[rows] for ops, rows in zip((base, new), left, strict=True)]
    if "family" in keys:
        left = [
            rows[(side["family"] != "").to_numpy()] for rows, side in zip(left, sides, strict=True)
        ]
        sides = [ops.iloc[rows] for ops, rows in zip((base, new), left, strict=True)]
    both = pd.concat([side[keys] for side in sides], ignore_index=True)
    codes = both.groupby(keys, sort=True).ngroup().to_numpy()
    of_base, of_new = codes[: len(left[0])], codes[len(left[0]) :]
    shared = np.intersect1d(of_base, of_new)
    for place, rows, own in ((places[0], left[0], of_base), (places[1], left[1], of_new)):
        is_shared = np.isin(own, shared)
        place[rows[is_shared]] = np.searchsorted(shared, own[is_shared]) + len(match)
    match += [name] * len(shared)


def _described(
    base: pd.DataFrame,
    new: pd.DataFrame,
    places: tuple[np.ndarray, np.ndarray],
    match: list[str],
) -> pd.DataFrame:
    rows = pd.DataFrame({"match": pd.Series(match, dtype="str")})
    listed = pd.concat([base.assign(row=places[0]), new.assign(row=places[1])])
    first = listed.groupby("row")[["component", "phase", "role"]].first()
    rows = rows.join(first)
    for name in _NAMES:
        sides = [
            _one_of(ops[name], place, len(rows))
            for ops, place in zip((base, new), places, strict=True)
        ]
        rows[name] = [_joined(b, n) for b, n in zip(*sides, strict=True)]
    return rows.astype(dict.fromkeys([*_NAMES, "component", "phase", "role"], "str"))


def _one_of(values: pd.Series, place: np.ndarray, rows: int) -> list[str | None]:
    """The one value of each row, empty where there are several; None where the side has none."""
    groups = values.groupby(place)
    first = groups.first().where(groups.nunique() == 1, "")
    return [first.get(row) for row in range(rows)]


def _joined(base: str | None, new: str | None) -> str:
    found = [text for text in (base, new) if text is not None]
    if "" in found:
        return ""
    return " → ".join(dict.fromkeys(found))
