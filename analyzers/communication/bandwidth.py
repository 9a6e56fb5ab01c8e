"""Question: how fast is a collective, and is that slow for the link?

Algorithm bandwidth is S / t, bus bandwidth that times a factor which makes it comparable with the
speed of a link, whatever the number of devices (nccl-tests, doc/PERFORMANCE.md). GB are 10**9.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.communication.sites import Site
from moeprof.analyzers.window import hardware_by_rank
from moeprof.columns.table import Table, texts_of
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

Float64s = npt.NDArray[np.float64]

LATENCY_NS = 20_000
"""What a call may take however little it sends: launch, handshake and one round of messages."""

SLOW = 4.0
"""Flagged is what takes longer than this many times the latency plus its bytes at full speed."""

_LEAST_REFERENCE_BYTES = 2**20
_ONE_MACHINE = 8
_ONCE = frozenset(
    {"all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "custom-call"}
)
"""Custom calls are token exchanges here, all-to-alls of their own making."""


def bus_factor(opcode: str, group_size: int) -> float:
    """What of S crosses a device's link: 2(n−1)/n, (n−1)/n, or 1; NaN for a group of unknown size.

    A reduction to all sends everything twice but its own share; gathers, reduce-scatters and
    all-to-alls once; a broadcast or a transfer between two devices sends all of it once.
    """
    share = (group_size - 1) / group_size if group_size > 0 else np.nan
    if opcode == "all-reduce":
        return 2 * share
    return share if opcode in _ONCE else 1.0


def gb_per_s(size_bytes: Float64s, duration_ns: Float64s) -> Float64s:
    """Bytes per nanosecond, which are decimal gigabytes per second; NaN without a duration."""
    return size_bytes / np.where(duration_ns > 0, duration_ns, np.nan)


def links_of(trace: Trace, sites: Sequence[Site], given: float | None) -> Float64s:
    """GB/s of the link that the groups of each site use, by place; NaN where it is not known.

    Within a host that is `given` bytes/s, else what the vendor states for the device's model.
    Groups with one member per host use the network; of others a part stays within the host, so
    that no one speed is theirs.
    """
    devices = hardware_by_rank(trace)
    hosts = dict(trace.table("devices").rows("rank", "host"))
    found = []
    for site in sites:
        members = [rank for group in site.groups[:1] for rank in group if rank in devices]
        link = devices[members[0]] if members else None
        spread = len({hosts[rank] for rank in members})
        speed = np.nan
        if spread == 1:
            speed = given if given is not None else link.peer_bytes_per_s if link else np.nan
        elif link and spread == len(members) and link.domain <= _ONE_MACHINE:
            speed = link.network_bytes_per_s or np.nan
        found.append(speed / 1e9)
    return np.array(found, np.float64)


def with_flags(table: Table, links: Float64s, *, has_links: bool) -> Table:
    """`table` with the columns ``link_share`` and ``flag``.

    Without a known link the fastest large collective of the trace is the measure, unless the
    devices have no links at all. A message whose size is only bounded is judged by the bound:
    what is slow even then is slow.
    """
    link = links[table["site"]]
    is_large = table["bytes"] * table["factor"] >= _LEAST_REFERENCE_BYTES
    large = table["bus_gb_per_s"][is_large & ~np.isnan(table["bus_gb_per_s"])]
    best = float(large.max()) if has_links and len(large) else np.nan
    reference = np.where(np.isnan(link), best, link)
    crossing = table["bound_bytes"] * table["factor"]
    with np.errstate(divide="ignore", invalid="ignore"):  # a group of one has nothing to send
        is_slow = table["transfer_ns"] > SLOW * (LATENCY_NS + crossing / reference)
        share = gb_per_s(crossing, table["transfer_ns"]) / reference
        link_share = table["bus_gb_per_s"] / link
    flags = [
        _flag(part, is_bound, "the link" if is_link else "the fastest here") if slow else ""
        for slow, part, is_bound, is_link in zip(
            is_slow, share.tolist(), np.isnan(table["bytes"]), ~np.isnan(link), strict=True
        )
    ]
    return table.assign(link_share=link_share, flag=texts_of(flags))


def _flag(share: float, is_bound: bool, what: str) -> str:
    return f"slow: {'at most ' if is_bound else ''}{format_percent(share)} of {what}"
