"""Question: how long does a collective take between devices that a domain holds a share of?

What leaves the domain goes through the members' own network cards, what stays uses the links
between peers; both run at the same time, the slower one counts.

Ring all-gather and reduce-scatter: Thakur et al. 2005, "Optimization of Collective Communication
Operations in MPICH", section 4: each member receives (g − 1) / g of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.setting import Count
from moeprof.projector.timing.rates import Rates
from moeprof.projector.timing.reals import Real
from moeprof.specs.hardware import HardwareSpec


class Links(NamedTuple):
    """Bytes/s of one device in one direction, as reached; ``network`` NaN where not known."""

    peer_bytes_per_s: float
    network_bytes_per_s: float
    domain: int


class Group(NamedTuple):
    """Devices that exchange: how many, and how many of them one domain holds."""

    size: Count
    inside: Count


def links_of(hardware: HardwareSpec, rates: Rates) -> Links:
    """The links of a device at the rates reached."""
    network = hardware.network_bytes_per_s
    return Links(
        hardware.peer_bytes_per_s * rates.peer,
        float("nan") if network is None else network * rates.network,
        hardware.domain,
    )


def all_to_all_s(sent_bytes: Real, group: Group, links: Links) -> Real:
    """Seconds of an all-to-all in which each member has ``sent_bytes`` for all, itself included."""
    outside = sent_bytes * (1 - group.inside / group.size)
    within = sent_bytes * (group.inside - 1) / group.size
    return slower(within, outside, links)


def gather_s(whole_bytes: Real, group: Group, links: Links) -> Real:
    """Seconds of an all-gather of ``whole_bytes``, or of a reduce-scatter of as much.

    A domain receives what it lacks once, shared among its members' network cards.
    """
    outside = whole_bytes * (1 - group.inside / group.size) / group.inside
    within = np.where(group.inside > 1, whole_bytes * (1 - 1 / np.asarray(group.size)), 0.0)
    return slower(within, outside, links)


def slower(within_bytes: Real, outside_bytes: Real, links: Links) -> Real:
    """Seconds of two transfers at once; what is 0 needs no link."""
    outside = np.asarray(outside_bytes, dtype=np.float64)
    network_s = np.where(outside > 0, outside / links.network_bytes_per_s, 0.0)
    return np.maximum(np.asarray(within_bytes) / links.peer_bytes_per_s, network_s)
