"""Question: how fast can a device send to its peers in the machine, and to other machines?"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Link:
    """What one device can send in one direction, as its vendor states it.

    ``peer_bytes_per_s`` is to all peers of the machine together, ``network_bytes_per_s`` to other
    machines through its share of the network cards of the usual server. ``domain`` counts the
    devices that the fast links join.
    """

    key: str
    peer_bytes_per_s: float
    network_bytes_per_s: float
    domain: int
    source: str


def link_of(model: str) -> Link | None:
    """The links of a device model as the profiler or JAX names it; None where it is not known."""
    return next((link for pattern, link in _table() if pattern.fullmatch(model.strip())), None)


@functools.cache
def _table() -> tuple[tuple[re.Pattern[str], Link], ...]:
    text = files("moeprof.specs").joinpath("links.csv").read_text(encoding="utf-8")
    return tuple(
        (
            re.compile(row["model"], re.IGNORECASE),
            Link(
                row["key"],
                float(row["peer_GB_per_s"]) * 1e9,
                float(row["network_GB_per_s"]) * 1e9,
                int(row["domain"]),
                row["source"],
            ),
        )
        for row in csv.DictReader(text.splitlines())
    )
