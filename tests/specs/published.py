"""What is published of a model: its widths under its family's keys, and its parameters.

Written by hand from the model cards: a config.json holds more, none of which changes a size.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Billions of parameters, and active ones, as counted from the widths and as printed."""

    keys: dict[str, object]
    total_billions: float
    active_billions: float
