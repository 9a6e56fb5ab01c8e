"""Question: how many neighbours share a cell of a map, so that it is not too large?"""

from __future__ import annotations

MOST_CELLS = 40_000


def per_cell(rows: int, columns: int) -> int:
    """How many columns in a row share a cell so that there are at most `MOST_CELLS`."""
    return -(-columns // max(MOST_CELLS // rows, 1))
