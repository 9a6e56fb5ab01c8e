"""Steps of a host that lacks the script's numbers, under the numbers that other hosts have.

A file that is cut may lack the annotations, so that its steps are counted from 0 while those of the
others bear the script's numbers. Equally many steps of the same program are the same ones, in their
order; whether that is so, the clocks tell. Other numbers cannot be joined: then the host's work is
in no step, so that the steps of the others stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from moeprof.ingest.placing.host_tables import HostTables
from moeprof.ingest.placing.step import Step


def with_common_numbers(
    tables: Sequence[HostTables], work: Sequence[pd.DataFrame]
) -> tuple[list[HostTables], list[pd.DataFrame]]:
    """`tables` and the work of each host, with steps numbered as on the hosts that know them."""
    numbered = [table for table in tables if table.cut.is_as_in_script]
    if not numbered or len(numbered) == len(tables):
        return list(tables), list(work)
    numbers = _numbers(numbered)
    pairs = [
        (table, mine) if table.cut.is_as_in_script else _joined(table, mine, numbers)
        for table, mine in zip(tables, work, strict=True)
    ]
    return [table for table, _ in pairs], [mine for _, mine in pairs]


def _numbers(tables: Sequence[HostTables]) -> list[int]:
    """Numbers of the steps with work, on any host."""
    return sorted({step.step for table in tables for step in table.cut.steps if step.runs})


def _joined(
    table: HostTables, work: pd.DataFrame, numbers: Sequence[int]
) -> tuple[HostTables, pd.DataFrame]:
    own = [step for step in table.cut.steps if step.runs]
    name = table.host.name
    if len(own) != len(numbers):
        told = (
            f"{name}: its {len(own)} step(s) are not numbered by the script, and the other hosts "
            f"have {len(numbers)}: which are the same is not known, and its work is in no step"
        )
        cut = table.cut._replace(steps=[])
        bare = replace(table, cut=cut, step_of={}, notes=(*table.notes, told))
        return bare, work.assign(step=-1)
    new_of = {step.step: number for step, number in zip(own, numbers, strict=True)}
    steps = [_numbered(step, new_of) for step in own]
    old = work["step"].to_numpy()
    new = np.full(len(work), -1, np.int64)
    for before, after in new_of.items():
        new[old == before] = after
    told = f"{name}: its {len(own)} steps are those of the other hosts in their order"
    step_of = {run: step.step for step in steps for run in step.runs}
    cut = table.cut._replace(steps=steps)
    return replace(table, cut=cut, step_of=step_of, notes=(*table.notes, told)), work.assign(
        step=new
    )


def _numbered(step: Step, new_of: dict[int, int]) -> Step:
    return replace(step, step=new_of[step.step])
