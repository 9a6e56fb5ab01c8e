"""A table inside moeprof: columns of one length by name, on NumPy alone.

Reading a profile and answering a question goes from table to table. pandas, whose import takes
longer than reading a small profile, comes in where a person or a question asks for a frame:
`Table.pandas`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from moeprof.columns.coded import Coded, Flags
from moeprof.columns.coded import stacked as stacked_texts
from moeprof.errors import TableError

if TYPE_CHECKING:
    import pandas as pd

Column: TypeAlias = Any
"""An int64, float64 or bool array, `Coded` texts, or an array of texts as objects."""
Given: TypeAlias = "Table | pd.DataFrame"
"""What a function takes that turns it into a `Table`."""
Frame = TypeVar("Frame", "Table", "pd.DataFrame")
"""Of functions that do with both and give what they take."""


class _Taken(NamedTuple):
    """Some rows of a column, which nobody has looked at yet."""

    column: Column
    rows: np.ndarray


class Table:
    """Columns of one length by name, in order. Nothing changes a table: methods make new ones.

    ``table["start_ns"]`` is a column, ``table[flags]``, ``table[places]`` and ``table[a:b]`` are
    tables of those rows. Of these a column is copied when it is looked at: a question about
    millions of rows looks at few of their columns.
    """

    __slots__ = ("_frame", "_held")
    _held: dict[str, Column | _Taken]
    _frame: pd.DataFrame

    def __init__(self, columns: Mapping[str, Column]) -> None:
        """Take the columns as they are; nothing is copied.

        Raises:
            ValueError: they are of several lengths.
        """
        self._held = dict(columns)
        if len(lengths := {_length(column) for column in self._held.values()}) > 1:
            raise ValueError(f"columns of one table have {sorted(lengths)} rows")

    @staticmethod
    def of(data: Given) -> Table:
        """`data` as a table; a frame keeps its columns, categories as `Coded`.

        Raises:
            TableError: a label is missing.
        """
        if isinstance(data, Table):
            return data
        made = Table({str(name): _column(str(name), data[name]) for name in data})
        made._frame = data
        return made

    @property
    def columns(self) -> dict[str, Column]:
        """All columns by name."""
        return {name: self[name] for name in self._held}

    def pandas(self) -> pd.DataFrame:
        """The table as a frame; its index counts the rows.

        Each call gives a frame of its own: what is written into it by pandas changes no table, nor
        is data copied before something is written.
        """
        if not hasattr(self, "_frame"):
            import pandas as pd

            columns = {name: _series(column) for name, column in self.columns.items()}
            self._frame = pd.DataFrame(columns, copy=False)
        return self._frame.copy(deep=False)

    def __len__(self) -> int:
        """How many rows."""
        return next((_length(column) for column in self._held.values()), 0)

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of this name."""
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        """The names of the columns."""
        return iter(self._held)

    @overload
    def __getitem__(self, chosen: str) -> Column: ...

    @overload
    def __getitem__(self, chosen: np.ndarray | slice | list[int]) -> Table: ...

    def __getitem__(self, chosen: str | np.ndarray | slice | list[int]) -> Column | Table:
        """A column by its name; else the table of some rows."""
        if isinstance(chosen, str):
            held = self._held[chosen]
            if isinstance(held, _Taken):
                held = self._held[chosen] = _rows_of(*held)
            return held
        if isinstance(chosen, slice):
            return Table({name: column[chosen] for name, column in self.columns.items()})
        rows = np.array(chosen, np.int64) if isinstance(chosen, list) else chosen
        if rows.dtype == bool:
            if len(rows) != len(self):
                raise IndexError(f"{len(rows)} flags for {len(self)} rows")
            rows = np.flatnonzero(rows)
        return Table(dict(zip(self._held, _taken(self._held.values(), rows), strict=True)))

    def __getstate__(self) -> dict[str, Column]:
        """What a copy or a pickle has: the columns."""
        return self.columns

    def __setstate__(self, columns: dict[str, Column]) -> None:
        """Take what a pickle has."""
        self._held = dict(columns)

    def __repr__(self) -> str:
        """How much there is of it."""
        return f"Table({len(self)} rows of {', '.join(self._held) or 'no columns'})"

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The rows as plain values of these columns; of all where none is named."""
        columns = [self[name].tolist() for name in names or self._held]
        return zip(*columns, strict=True)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as plain values by column."""
        return [dict(zip(self._held, row, strict=True)) for row in self.rows()]

    def select(self, *names: str) -> Table:
        """These columns alone, in this order."""
        return Table({name: self._held[name] for name in names})

    def without(self, *names: str) -> Table:
        """The other columns."""
        return Table({name: c for name, c in self._held.items() if name not in names})

    def assign(self, **columns: Column) -> Table:
        """With other or more columns; one value is that of every row."""
        return Table(self._held | {n: _filled(value, len(self)) for n, value in columns.items()})

    def beside(self, other: Table) -> Table:
        """With the columns of another table of as many rows."""
        return Table(self._held | other._held)

    def renamed(self, **names: str) -> Table:
        """With other names of some columns: the new one by the old one."""
        return Table({names.get(name, name): column for name, column in self._held.items()})

    def order(self, *names: str, falling: Sequence[str] = ()) -> np.ndarray:
        """Places of the rows in order of these columns, those alike as they stand.

        Texts are in the order of the alphabet, missing floats last; `falling` are the columns
        whose largest values come first.
        """
        keys = [_sort_key(self[name], is_falling=name in falling) for name in names]
        return np.lexsort(keys[::-1])

    def sorted(self, *names: str, falling: Sequence[str] = ()) -> Table:
        """The rows in that order."""
        return self[self.order(*names, falling=falling)]


def stacked(tables: Sequence[Table]) -> Table:
    """Tables of the same columns one behind the other."""
    if len(tables) == 1:
        return tables[0]
    return Table({name: joined([table[name] for table in tables]) for name in tables[0]})


def joined(columns: Sequence[Column]) -> Column:
    """Columns one behind the other; all are texts as codes, or none is. One value stays one."""
    first = columns[0]
    if isinstance(first, Coded):
        return stacked_texts(columns)
    if len(columns) == 1:
        return first
    if all(column.strides == (0,) and column.dtype == first.dtype for column in columns):
        values = {column[0] for column in columns if len(column)}
        if len(values) == 1:
            return np.broadcast_to(values.pop(), sum(map(len, columns)))
    return np.concatenate(columns)


def isin(column: Column, wanted: Iterable[Any]) -> Flags:
    """Whether each entry of a column is one of some values, texts or numbers."""
    if isinstance(column, Coded):
        return column.isin(wanted)
    if column.dtype == object:
        among = frozenset(wanted)
        return np.fromiter((value in among for value in column), bool, len(column))
    values = wanted if isinstance(wanted, np.ndarray) else np.array(list(wanted), column.dtype)
    return np.isin(column, values)


def texts_of(values: Iterable[str]) -> np.ndarray:
    """Texts as an array of objects."""
    held = list(values)
    found = np.empty(len(held), object)
    found[:] = held
    return found


def _length(column: Column | _Taken) -> int:
    return len(column.rows if isinstance(column, _Taken) else column)


def _taken(columns: Iterable[Column | _Taken], rows: np.ndarray) -> Iterator[_Taken]:
    """These rows of columns; of some rows again those among them, not a copy of a copy."""
    known: dict[int, np.ndarray] = {}
    for column in columns:
        if not isinstance(column, _Taken):
            yield _Taken(column, rows)
            continue
        if id(column.rows) not in known:
            known[id(column.rows)] = column.rows[rows]
        yield _Taken(column.column, known[id(column.rows)])


def _rows_of(column: Column, rows: np.ndarray) -> Column:
    """Some rows of a column; one value in the place of all stays one."""
    if isinstance(column, Coded):
        return Coded(_rows_of(column.codes, rows), column.texts)
    if column.strides == (0,) and len(column):
        return np.broadcast_to(column[0], len(rows))
    return column[rows]


def _filled(value: object, count: int) -> Column:
    """A column of one value; what has entries is one."""
    if isinstance(value, str):
        return Coded.same(value, count)
    if isinstance(value, bool | int | float | np.generic):
        return np.broadcast_to(np.asarray(value), count)
    if isinstance(value, list):
        are_texts = bool(value) and isinstance(value[0], str)
        return texts_of(value) if are_texts else np.asarray(value)
    return value


def _sort_key(column: Column, *, is_falling: bool) -> np.ndarray:
    if isinstance(column, Coded):
        ranks = np.empty(len(column.texts), np.int64)
        ranks[np.argsort(texts_of(column.texts), kind="stable")] = np.arange(len(ranks))
        key = ranks.take(column.codes)
    elif column.dtype == object:
        key = np.unique(column, return_inverse=True)[1]
    else:
        key = column.astype(np.int8) if column.dtype == bool else column
    return -key if is_falling else key


def _column(name: str, series: Any) -> Column:
    """A column of a frame; whole numbers of any width as int64."""
    if series.dtype == "category":
        codes = series.cat.codes.to_numpy()
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            raise TableError(f"column '{name}': expected a text in each row, found none in {row}")
        return Coded(codes, series.cat.categories.tolist())
    if series.dtype == "str" or series.dtype == object:
        return series.to_numpy(dtype=object)
    values = series.to_numpy()
    return values.astype(np.int64, copy=False) if values.dtype.kind in "iu" else values


def _series(column: Column) -> Any:
    """A column as what a frame is made of."""
    import pandas as pd

    if isinstance(column, Coded):
        return pd.Categorical.from_codes(column.codes, pd.Index(list(column.texts), dtype="str"))
    return pd.array(column, dtype="str") if column.dtype == object else column
