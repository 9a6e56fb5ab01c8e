"""Question: how is a table of cells drawn, with a bar beside each row?

Pure: cells in, plotly figure out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeprof.answers.bars import Figure, Json
from moeprof.answers.document import Document, drawn_column, figures_of

MOST_CELLS = 40_000


def per_cell(rows: int, columns: int) -> int:
    """How many columns in a row share a cell so that there are at most `MOST_CELLS`."""
    return -(-columns // max(MOST_CELLS // rows, 1))


Cells = npt.NDArray[np.float64]

_TICKS = 8
_SIDE = "#7d858d"
_AXIS_PX, _KEY_PX, _RANKS_PX = 54, 58, 18
_LEAST_PX, _MOST_PX, _MAP_PX, _TALLEST_PX = 6, 32, 420, 900


@dataclass(frozen=True)
class CellMap:
    """Cells [rows, columns] by name; ``told`` [rows, columns, figures] is what the hover shows."""

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Cells
    told: Cells
    hover: str


@dataclass(frozen=True)
class Side:
    """A bar beside each row of a map."""

    lengths: Sequence[float | None]
    hover: str
    title: str


def drawn(
    found: CellMap,
    side: Side,
    axes: tuple[str, str],
    colours: dict[str, Json],
    key: dict[str, Json],
) -> Figure:
    """A heat map with its colours' key above and a bar beside each row."""
    rows, columns = found.cells.shape
    map_px = min(rows * _MOST_PX, max(_MAP_PX, rows * _LEAST_PX), _TALLEST_PX)
    x_title, y_title = axes
    cells: Json = {
        "type": "heatmap",
        "x": list(found.columns),
        "y": list(found.rows),
        "customdata": [plain(row) for row in found.told],
        "hovertemplate": found.hover,
        "hoverongaps": False,
        "xgap": 1 if columns <= 128 else 0,
        "ygap": 1 if rows <= 64 else 0,
        **colours,
        "colorbar": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "len": 0.4,
            "y": 1 + (_RANKS_PX + 4) / map_px,
            "yanchor": "bottom",
            "thickness": 9,
            "outlinewidth": 0,
            "tickfont": {"size": 11},
            "xpad": 0,
            "ypad": 0,
            **key,
        },
    }
    bars: Json = {
        "type": "bar",
        "orientation": "h",
        "x": list(side.lengths),
        "y": list(found.rows),
        "xaxis": "x2",
        "hovertemplate": side.hover,
        "marker": {"color": _SIDE, "line": {"width": 0}},
        "showlegend": False,
    }
    category: dict[str, Json] = {"type": "category", "showgrid": False, "zeroline": False}
    return {
        "data": [cells, bars],
        "layout": {
            "height": map_px + _KEY_PX + _RANKS_PX + _AXIS_PX,
            "showlegend": False,
            "bargap": 0.3,
            "margin": {"l": 8, "r": 8, "t": _KEY_PX + _RANKS_PX, "b": _AXIS_PX},
            "xaxis": {
                **category,
                "domain": [0, 0.86],
                "title": axis_title(x_title),
                "range": [-0.5, columns - 0.5],
                "nticks": _TICKS,
                "tickangle": 0,
            },
            "xaxis2": {
                "domain": [0.885, 1],
                "title": axis_title(side.title),
                "rangemode": "tozero",
                "nticks": 3,
                "zeroline": False,
            },
            "yaxis": {
                **category,
                "range": [rows - 0.5, -0.5],
                "automargin": True,
                "title": axis_title(y_title),
            },
        },
    }


def axis_title(text: str) -> dict[str, Json]:
    """The title of an axis, close to it."""
    return {"text": text, "standoff": 6}


def columns_of(document: Document, name: str) -> dict[str, Cells] | None:
    """Columns of figures of a drawing; None where it has no row."""
    drawing = document["drawings"].get(name)
    if drawing is None:
        return None
    found = {
        column: np.array(drawn_column(drawing, column), dtype="float64")
        for column in drawing["data"]
    }
    return found if all(len(values) for values in found.values()) else None


def metric(document: Document, name: str, figure: str) -> int:
    """A headline figure of a drawing that is always known."""
    value = figures_of(document["drawings"][name])[figure]
    assert isinstance(value, int)
    return value


def digits(value: float) -> str:
    """A whole number, as it is written."""
    return str(int(value))


def plain(cells: Cells) -> Json:
    """Rows of numbers, whole ones without a point; None where not known."""
    return [
        [None if v != v else int(v) if v == int(v) else round(v, 4) for v in row]
        for row in cells.tolist()
    ]


def scales(
    light: Sequence[tuple[float, str]], dark: Sequence[tuple[float, str]]
) -> dict[str, Json]:
    """Colours of both themes; the page takes those of its own."""
    return {"colorscale": [list(p) for p in light], "meta": {"dark": [list(p) for p in dark]}}
