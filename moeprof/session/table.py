"""Question: how do rows of a document read as a table of pandas, with the units of its columns?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from moeprof.answers.document import ColumnInfo, Value


def framed(rows: Sequence[Mapping[str, Value]], columns: Sequence[ColumnInfo]) -> pd.DataFrame:
    """One row each; ``table.attrs["units"]`` has the unit of each column.

    Figures that are not known are NaN, also where no row has one: None could not be added up.
    """
    table = pd.DataFrame(rows, columns=[column["name"] for column in columns])
    blank = [c["name"] for c in columns if c["unit"] and table[c["name"]].isna().all()]
    table = table.astype(dict.fromkeys(blank, "float64"))
    table.attrs["units"] = {column["name"]: column["unit"] for column in columns}
    return table
