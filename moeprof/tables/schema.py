"""Question: what does each column of a table hold, in which unit?

A `Schema` travels with every frame that crosses a module border.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprof.columns.coded import Coded, by_alphabet
from moeprof.columns.table import Table, texts_of
from moeprof.errors import TableError

if TYPE_CHECKING:
    import pandas as pd

# Column kinds and the pandas dtype each has in a frame. "text" never holds a missing value, nor
# does "label", text of few different values kept as codes; "int64" columns mark "none" by -1,
# stated in the column's meaning. In a `Table` texts are objects and labels are `Coded`.
_DTYPES = {
    "int64": "int64",
    "float64": "float64",
    "bool": "bool",
    "text": "str",
    "label": "category",
}


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

    def table(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()) -> Table:
        """Build a table from columns (mapping) or rows (sequence), with this schema's types.

        Columns that have them already are taken as they are, not copied; labels given as texts are
        in the order of the alphabet.

        Raises:
            TableError: a column is missing, or cannot have the type.
        """
        if isinstance(rows, Mapping):
            self._require(rows)
            columns = {column.name: rows[column.name] for column in self.columns}
        else:
            columns = {name: [row[name] for row in rows] for name in self.names}
        return Table({c.name: self._typed(c, columns[c.name]) for c in self.columns})

    def frame(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
        """The same as a pandas frame."""
        import pandas as pd

        if isinstance(rows, Mapping):
            table = pd.DataFrame(rows, copy=False)
        else:
            table = pd.DataFrame(list(rows), columns=self.names)
        return self.check(self._cast(table))

    def checked(self, table: Table) -> Table:
        """`table` with this schema's columns in order; extra columns are dropped.

        Raises:
            TableError: a column is missing or has another type.
        """
        self._require(table)
        for column in self.columns:
            values = table[column.name]
            found = "label" if isinstance(values, Coded) else str(values.dtype)
            if found != {"text": "object"}.get(column.kind, column.kind):
                raise self._other_kind(column, found)
        return table if list(table) == self.names else table.select(*self.names)

    def check(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return `table` with this schema's columns in order; extra columns are dropped.

        Raises:
            TableError: a column is missing or has another dtype.
        """
        import pandas as pd

        self._require(table.columns)
        dtypes = dict(zip(table.columns, table.dtypes, strict=True))
        for column in self.columns:
            found = dtypes[column.name]
            if found != _DTYPES[column.kind]:
                raise self._other_kind(column, found)
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

    def _require(self, found: Iterable[object]) -> None:
        there = list(found)
        missing = [name for name in self.names if name not in there]
        if missing:
            raise TableError(
                f"table '{self.name}' lacks column(s) {', '.join(missing)} "
                f"(it has: {', '.join(map(str, there)) or 'none'})"
            )

    def _typed(self, column: Column, values: Any) -> Any:
        """A column of a `Table`, of its type."""
        if column.kind == "label":
            return values if isinstance(values, Coded) else by_alphabet(Coded.of(values))
        if column.kind == "text":
            if isinstance(values, Coded):
                return values.array()
            return values if isinstance(values, np.ndarray) else texts_of(values)
        found = np.asarray(values)
        if found.dtype == column.kind:
            return found
        if len(found) and found.dtype.kind not in ("f" if column.kind == "float64" else "") + "iub":
            raise self._other_kind(column, found.dtype)
        return found.astype(column.kind)

    def _other_kind(self, column: Column, found: object) -> TableError:
        return TableError(
            f"table '{self.name}', column '{column.name}': expected {column.kind}, found {found}"
        )
