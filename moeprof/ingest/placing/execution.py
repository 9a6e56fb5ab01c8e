"""One execution of a program on the devices of a host, from which steps are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Execution:
    """One execution of a module over all devices of a host.

    ``least_ops`` and ``most_ops`` are those of the devices with the fewest and the most.
    """

    module: int
    run_id: int
    start_ns: int
    end_ns: int
    busy_ns: int
    ops: int
    devices: int
    least_ops: int = 0
    most_ops: int = 0
