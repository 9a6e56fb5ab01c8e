"""Question: which figure shows how much of the devices' memory is in use over time?

Pure: document in, plotly figure out.
"""

from __future__ import annotations

from moeprof.answers.bars import Figure, Json, plotly_text
from moeprof.answers.colours import COLOURS, HELD, MIXED
from moeprof.answers.document import Document, drawn_column, figures_of
from moeprof.answers.memory_layers import Scale, limit_of, limit_shape
from moeprof.answers.values import whole
from moeprof.units import format_bytes, format_ns

ALLOCATED = (
    "In use over time: What the allocator of each device had given out, as measured. The fullest "
    "one is orange, the others grey; dotted lines are the starts of steps. A program holds all "
    "its temporary memory from its start to its end."
)
Pool = tuple[int, str]
"""A rank and the name of one of its pools."""

_MOST_STEPS = 40


def allocated(document: Document) -> Figure | None:
    """One line per pool of a rank, the fullest last; the pool's size where it is near."""
    drawing = document["drawings"].get("allocated")
    if drawing is None or not drawing["headline"]:
        return None
    told = figures_of(drawing)
    names = ("rank", "pool", "start_ns", "in_use_bytes")
    columns = (drawn_column(drawing, name) for name in names)
    lines: dict[Pool, list[tuple[int, int]]] = {}
    for rank, pool, start, size in zip(*columns, strict=True):
        lines.setdefault((whole(rank), str(pool)), []).append((whole(start), whole(size)))
    most = whole(told["most_in_use"])
    fullest = whole(told["fullest_rank"]), str(told["fullest_pool"])
    has_several = len({rank for rank, _pool in lines}) < len(lines)
    scale, limit = Scale(most), limit_of(told, most)
    end = max(changes[-1][0] for changes in lines.values())
    for changes in lines.values():  # what is in use at the last change of a pool stays so
        changes.append((end, changes[-1][1]))
    shown = sorted(lines, key=lambda line: (line == fullest, line))
    layout: dict[str, Json] = {
        "height": 300,
        "showlegend": len(lines) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        "margin": {"l": 56, "r": 16, "t": 36, "b": 44},
        "hovermode": "closest",
        "xaxis": {"title": {"text": "ms since the capture began"}, "showgrid": False},
        "yaxis": {"title": {"text": scale.unit}, "range": [0, 1.08 * scale(limit or most)]},
        "shapes": [*_steps(document), *([limit_shape(limit, scale)] if limit else [])],
    }
    return {
        "data": [
            _line(
                _name(*pool, has_several=has_several),
                lines[pool],
                scale,
                is_fullest=pool == fullest,
            )
            for pool in shown
        ],
        "layout": layout,
    }


def _name(rank: int, pool: str, *, has_several: bool) -> str:
    """The rank; where one has several pools, the pool too."""
    return f"rank {rank}, {plotly_text(pool)}" if has_several else f"rank {rank}"


def _line(name: str, changes: list[tuple[int, int]], scale: Scale, *, is_fullest: bool) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [start / 1e6 for start, _size in changes],
        "y": [scale(size) for _start, size in changes],
        "line": {
            "shape": "hv",
            "width": 2 if is_fullest else 1,
            "color": COLOURS["grouped_gemm"] if is_fullest else HELD["weights"][0],
        },
        "customdata": [f"{format_bytes(size)} from {format_ns(start)}" for start, size in changes],
        "hovertemplate": name + ": %{customdata}<extra></extra>",
    }


def _steps(document: Document) -> list[Json]:
    """A line at the start of each step, where there is one clock and not too many of them."""
    steps = document["steps"]
    if len(document["run"]["hosts"]) != 1 or len(steps) > _MOST_STEPS:
        return []
    return [
        {
            "type": "line",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": step["start_ns"] / 1e6,
            "x1": step["start_ns"] / 1e6,
            "line": {"color": MIXED, "width": 1, "dash": "dot"},
        }
        for step in steps
    ]
