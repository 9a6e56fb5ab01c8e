"""Frames of any schema for property tests, and traces of them."""

from __future__ import annotations

import pandas as pd
from hypothesis import strategies as st

from moeprof.tables.law import Law
from moeprof.tables.schema import Schema
from moeprof.tables.trace import FRAMES, Trace, TraceMeta

# all of Unicode but lone surrogates, which pandas refuses in a text column
ODD_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    ["", "\0", 'a"b\\c', "</script>", "None", "nan", "NA", "é\u202e", "\U0001f600"]
)
INT64 = st.integers(-(2**63), 2**63 - 1)
_VALUES = {
    "int64": INT64,
    "float64": st.floats(),
    "bool": st.booleans(),
    "text": ODD_TEXT,
    "label": ODD_TEXT,
}


@st.composite
def frames(draw: st.DrawFn, schema: Schema) -> pd.DataFrame:
    """A frame of the schema with up to four rows."""
    rows = draw(st.integers(0, 4))
    columns = {
        column.name: draw(st.lists(_VALUES[column.kind], min_size=rows, max_size=rows))
        for column in schema.columns
    }
    return schema.frame(columns)


def trace_with(meta: TraceMeta | None = None, **given: pd.DataFrame) -> Trace:
    """A trace whose other frames have no row."""
    empty = {name: schema.frame() for name, schema in FRAMES.items()}
    return Trace(
        meta or TraceMeta("run", "gpu", ("a",), 1, "0.10.2", 5),
        (Law("truncated", "ok", "5 events read to the end"),),
        **{**empty, **given},
    )
