"""Question: what does each column of a table hold, in which unit?

A `Schema` travels with every frame that crosses a module border.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas.api.types import union_categoricals

from moeprof.errors import TableError

# Column kinds and the pandas dtype each is stored with. "text" never holds a missing value, nor
# does "label", text of few different values kept as codes; "int64" columns mark "none" by -1,
# stated in the column's meaning.
_DTYPES = {
    "int64": "int64",
    "float64": "float64",
    "bool": "bool",
    "text": "str",
    "label": "category",
}


def stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames of the same columns one behind the other; labels stay codes, in order of first use."""
    first = frames[0]
    columns = {}
    for name in first:
        parts = [frame[name] for frame in frames]
        if isinstance(first[name].dtype, pd.CategoricalDtype):
            columns[name] = pd.Series(union_categoricals(parts))
        else:
            columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns, copy=False)


@dataclass(frozen=True)
class Column:
    """One column: its name, kind (a key of the table above), unit and meaning.

    ``heading`` is what people read above it where the name does not say it.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    heading: str = ""


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return [column.name for column in self.columns]

    def frame(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
        """Build a frame from columns (mapping) or rows (sequence), with this schema's dtypes.

        Columns that have them already are taken as they are, not copied.
        """
        if isinstance(rows, Mapping):
            table = pd.DataFrame(rows, copy=False)
        else:
            table = pd.DataFrame(list(rows), columns=self.names)
        return self.check(self._cast(table))

    def check(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return `table` with this schema's columns in order; extra columns are dropped.

        Raises:
            TableError: a column is missing or has another dtype.
        """
        missing = [name for name in self.names if name not in table.columns]
        if missing:
            raise TableError(
                f"table '{self.name}' lacks column(s) {', '.join(missing)} "
                f"(it has: {', '.join(map(str, table.columns)) or 'none'})"
            )
        dtypes = dict(zip(table.columns, table.dtypes, strict=True))
        for column in self.columns:
            found = dtypes[column.name]
            if found != _DTYPES[column.kind]:
                raise TableError(
                    f"table '{self.name}', column '{column.name}': expected {column.kind}, "
                    f"found {found}"
                )
        if list(table.columns) == self.names:
            return table
        return pd.DataFrame({name: table[name] for name in self.names}, copy=False)

    def _cast(self, table: pd.DataFrame) -> pd.DataFrame:
        dtypes = dict(zip(table.columns, table.dtypes, strict=True))
        kinds = {c.name: _DTYPES[c.kind] for c in self.columns if c.name in dtypes}
        wrong = {name: kind for name, kind in kinds.items() if dtypes[name] != kind}
        codes = [name for name, kind in wrong.items() if kind == "category"]
        # by way of text, so that the labels of a table without rows are text too
        return table.astype(dict.fromkeys(codes, "str")).astype(wrong) if wrong else table
