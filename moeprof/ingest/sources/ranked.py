"""What is known of the ranks of a run's devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class Ranked:
    """``devices`` is `DEVICES`; ``told_by`` says what ranks follow from, empty where not known.

    ``conflict`` says which sources contradict each other, ``differs`` what a weaker one says that
    was passed over; ``unknown`` are hosts with devices without a rank. ``missing`` are ranks that
    programs of this run name and no file has, of ``expected`` devices, 0 where no program says how
    many. ``of_module`` are the ranks of each program's devices in the order by which its replica
    groups count them, where these are not the first ranks or the program tells them, as
    ``is_assigned`` says of any; a rank that no file has is among them.
    """

    devices: pd.DataFrame
    told_by: str = ""
    conflict: str = ""
    differs: str = ""
    unknown: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    expected: int = 0
    of_module: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    is_assigned: bool = False
