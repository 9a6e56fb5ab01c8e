"""Question: do the strategies' losses stand in the expected order, or does chance explain them?

Strategies of one seed share weights and batches, so their losses are compared in pairs: what is
tested is the mean over seeds of (loss of the one that drops more − loss of the other). Its
standard error is the differences' standard deviation over √seeds; with so few seeds the quotient
follows Student's t.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""One-sided 95 % quantiles of Student's t with 1, 2, … degrees of freedom."""


def pairs_of(strategies: tuple[str, ...]) -> list[tuple[str, str]]:
    """Neighbours, then each that drops with sparse-gmm, which does not, where they are none."""
    pairs = list(itertools.pairwise(strategies))
    ends = [(s, "sparse-gmm") for s in strategies if s.startswith("dense")]
    return pairs + [pair for pair in ends if pair[1] in strategies and pair not in pairs]


def comparisons(
    runs: list[dict[str, Any]], pairs: list[tuple[str, str]], quantity: str
) -> list[dict[str, Any]]:
    """One entry per router and pair of strategies.

    ``difference`` is the mean over seeds of the first's ``quantity`` less the second's (nats per
    byte), ``standard_error`` that of the mean (none for one seed), ``verdict`` "higher", "lower" or
    "not told apart" at 95 %, one-sided. Only seeds that ran with both count.
    """
    found = []
    routers = list(dict.fromkeys(run["router"] for run in runs))
    for router, (first, second) in itertools.product(routers, pairs):
        losses = [_by_seed(runs, router, strategy, quantity) for strategy in (first, second)]
        seeds = sorted(losses[0].keys() & losses[1].keys())
        if not seeds:
            continue
        differences = [losses[0][seed] - losses[1][seed] for seed in seeds]
        error = standard_error(differences)
        found.append(
            {
                "router": router,
                "quantity": quantity,
                "first": first,
                "second": second,
                "seeds": seeds,
                "differences": [round(difference, 6) for difference in differences],
                "difference": statistics.mean(differences),
                "standard_error": error,
                "verdict": verdict(statistics.mean(differences), error, len(seeds)),
            }
        )
    return found


def standard_error(values: list[float]) -> float | None:
    """Of the mean; none of a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def verdict(difference: float, error: float | None, seeds: int) -> str:
    """What ``seeds`` differences with this mean and standard error say."""
    if error is None:
        return "one seed"
    if abs(difference) <= T_95[min(seeds - 1, len(T_95)) - 1] * error:
        return "not told apart"
    return "higher" if difference > 0 else "lower"


def _by_seed(
    runs: list[dict[str, Any]], router: str, strategy: str, quantity: str
) -> dict[int, float]:
    return {
        run["seed"]: run[quantity]
        for run in runs
        if "failed" not in run and (run["router"], run["strategy"]) == (router, strategy)
    }
