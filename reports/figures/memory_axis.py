"""Question: in which unit does a figure show memory, and where is the most that a device holds?"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.reports.document import Value
from moeprof.reports.figures.bars import Json
from moeprof.reports.values import whole
from moeprof.units import format_bytes

_LIMIT = "#c0392b"
_NEAR = 0.4
"""A limit is drawn where the peak reaches this share of it: else it would flatten all else."""


class Scale:
    """Bytes as the unit that an axis has."""

    def __init__(self, peak_bytes: int) -> None:
        """MiB, and GiB from 1 GiB on."""
        self.bytes, self.unit = (2**30, "GiB") if peak_bytes >= 2**30 else (2**20, "MiB")

    def __call__(self, size_bytes: int) -> float:
        """The size on the axis."""
        return size_bytes / self.bytes


def limit_of(told: Mapping[str, Value], peak_bytes: int) -> int | None:
    """What the device can hold, the allocator's pool first; None where it is far away."""
    limit = whole(told.get("pool")) or whole(told.get("device_memory"))
    return limit if limit and peak_bytes >= _NEAR * limit else None


def limit_shape(limit_bytes: int, scale: Scale) -> Json:
    """A line across the figure with the limit's size."""
    y = scale(limit_bytes)
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": _LIMIT, "width": 2, "dash": "dash"},
        "label": {
            "text": f"limit {format_bytes(limit_bytes)}",
            "textposition": "start",
            "yanchor": "bottom",
            "font": {"color": _LIMIT, "size": 12},
        },
    }
