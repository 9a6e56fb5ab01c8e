"""Question: with how many sequences per device does a strategy's step still run?

The plans of compiled steps grow on a line with the batch, which leads to the largest that the
allocator's pool should hold; that one is run, then the next larger until one runs out of memory, or
the next smaller until one runs. Steps are compiled without tuning, which takes less time; that
changes their speed, and their plan by the workspaces of products alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

MOST_COMPILED = 4
MOST_TRIED = 4
UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""Products by cuBLAS, which is fast untuned; XLA's own are not."""


def planned_largest(
    common: tuple[int, int], guess: int, pool_bytes: int, planned: Callable[[int], int]
) -> int:
    """The largest pdbs whose plan fits ``pool_bytes``, at least 1, as far as a line tells.

    ``common`` is a pdbs and its planned bytes, ``guess`` where to look first, ``planned`` compiles
    a step and gives its bytes; it is asked at most `MOST_COMPILED` times.
    """
    base, base_bytes = common
    pdbs = max(guess, 1)
    known: set[int] = set()
    while pdbs != base and pdbs not in known and len(known) < MOST_COMPILED:
        known.add(pdbs)
        found = planned(pdbs)
        slope = (found - base_bytes) / (pdbs - base)
        if slope <= 0:
            return pdbs
        pdbs = max(pdbs + math.floor((pool_bytes - found) / slope), 1)
    return pdbs


def attempts(first: int, common: int, runs: Callable[[int], bool]) -> Iterator[tuple[int, bool]]:
    """(pdbs, whether it ran), from ``first`` up to one that fails or down to one that runs.

    ``common`` is known to run and is not run again. At most `MOST_TRIED`.
    """
    pdbs = common + 1 if first == common else first
    step = 0
    for _ in range(MOST_TRIED):
        if pdbs == common:
            return
        ran = runs(pdbs)
        yield pdbs, ran
        if step and (ran if step < 0 else not ran):
            return
        step = step or (1 if ran else -1)
        pdbs += step
        if pdbs < 1:
            return


def largest_of(common: int | None, tried: list[dict[str, Any]]) -> dict[str, Any]:
    """``pdbs``: the largest that ran, 0 for none; ``is_bounded``: whether the next one failed."""
    ran = [row["pdbs"] for row in tried if "failed" not in row]
    pdbs = max([common or 0, *ran])
    is_bounded = any(row["pdbs"] == pdbs + 1 and "failed" in row for row in tried)
    return {"pdbs": pdbs, "is_bounded": is_bounded, "tried": tried}


def search_here(
    common: tuple[int, int],
    guess: int,
    pool_bytes: int,
    compiled: Callable[[int], Any],
    run: Callable[[Any, int], str | None],
) -> None:
    """Print a line of JSON per attempt, in this process.

    ``compiled`` makes the executable of a step for a pdbs, ``run`` runs it and returns why it
    failed, or none.
    """
    made: dict[int, Any] = {}

    def planned(pdbs: int) -> int:
        if pdbs not in made:
            made[pdbs] = compiled(pdbs)
        return plan_bytes(made[pdbs])

    def runs(pdbs: int) -> bool:
        row: dict[str, Any] = {"pdbs": pdbs, "planned_bytes": planned(pdbs)}
        reason = run(made[pdbs], pdbs)
        print(json.dumps(row | ({} if reason is None else {"failed": reason})), flush=True)
        return reason is None

    first = planned_largest(common, guess, pool_bytes, planned)
    for _ in attempts(first, common[0], runs):
        pass


def plan_bytes(executable: Any) -> int:
    """Arguments and temporaries of a step; its outputs take the place of its arguments."""
    memory = executable.memory_analysis()
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes)
