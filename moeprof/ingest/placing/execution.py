"""One execution of a program on the devices of a host, from which steps are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

COMPARABLE = 0.25
"""Of the largest program's device time. A forward pass takes a third of what a training step of the
same batch does, so that a few batches of evaluation more or less decide which of the two is the
largest. Below a quarter a program is small beside the steps by either reading, and device time
outside of the steps names it."""


@dataclass(frozen=True)
class Execution:
    """One execution of a module over all devices of a host.

    ``least_ops`` and ``most_ops`` are those of the devices with the fewest and the most.
    ``loose_ops`` are those in loops of unknown rounds and in branches; ``begins_loose`` and
    ``ends_loose`` count the devices whose first or last is such a one.
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
    loose_ops: int = 0
    begins_loose: int = 0
    ends_loose: int = 0


def busy_by_module(executions: Sequence[Execution]) -> Counter[int]:
    """Device time of each module, in ns."""
    busy: Counter[int] = Counter()
    for execution in executions:
        busy[execution.module] += execution.busy_ns
    return busy


def largest_module(executions: Sequence[Execution]) -> int:
    """The module with the most device time."""
    busy = busy_by_module(executions)
    return max(busy, key=lambda module: busy[module])
