"""Loads of every expert and every rank, step by step, as the run recorded them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.load.balance import Loads, imbalance

_TELLING = 0.1
"""Share of a map's largest cell above which a step that is more uneven deserves a word."""


@dataclass(frozen=True)
class StepLoads:
    """(token, expert) pairs of each recorded step and layer.

    ``by_expert`` is [steps, layers, experts], ``by_rank`` [steps, layers, ranks]; ``steps`` and
    ``layers`` are the numbers of their first two axes, in order. A rank that none of the rows
    names has no load.
    """

    steps: np.ndarray
    layers: np.ndarray
    by_expert: Loads
    by_rank: Loads

    @property
    def are_ranks_known(self) -> bool:
        """Whether the run told which rank owns which expert: one rank alone tells nothing."""
        return int(self.by_rank.shape[2]) > 1


def step_loads(routing: pd.DataFrame) -> StepLoads:
    """The rows of `ROUTING`, of which there is at least one, as arrays."""
    steps, step = np.unique(routing["step"].to_numpy(), return_inverse=True)
    layers, layer = np.unique(routing["layer"].to_numpy(), return_inverse=True)
    tokens = routing["tokens"].to_numpy(dtype=np.float64)
    expert, rank = routing["expert"].to_numpy(), routing["rank"].to_numpy()
    ranks = rank if rank.min() >= 0 else np.zeros_like(rank)  # -1 is one that nobody knows
    by_expert, by_rank = (
        _dense((step, layer, place), tokens, (len(steps), len(layers))) for place in (expert, ranks)
    )
    return StepLoads(steps, layers, by_expert, by_rank)


def _dense(
    at: tuple[np.ndarray, np.ndarray, np.ndarray], tokens: Loads, shape: tuple[int, int]
) -> Loads:
    """With a place for every number from 0, so that places are numbers."""
    found = np.zeros((*shape, int(at[2].max()) + 1))
    np.add.at(found, at, tokens)
    return found


@dataclass(frozen=True)
class Busiest:
    """Of each layer: the place that is fullest in most steps, and in which share of them it is.

    Of places that are fullest in as many steps it is the one with most pairs over all of them.
    """

    place: np.ndarray
    share: np.ndarray


def busiest(loads: Loads) -> Busiest:
    """`Busiest` of loads [steps, layers, places]; steps without a pair do not count."""
    fullest = loads.max(axis=2, keepdims=True)
    times = ((loads == fullest) & (fullest > 0)).sum(axis=0)  # [layers, places]
    most = times.max(axis=1, keepdims=True)
    place = np.where(times == most, loads.sum(axis=0), -1.0).argmax(axis=1)
    counted = np.maximum((fullest[:, :, 0] > 0).sum(axis=0), 1)
    return Busiest(place, most[:, 0] / counted)


def mean_of_steps(by_step: Loads) -> Loads:
    """Mean over the first axis of what is known in each step; NaN where it is known in none."""
    known = ~np.isnan(by_step)
    counts = known.sum(axis=0)
    sums = np.where(known, by_step, 0.0).sum(axis=0)
    mean: Loads = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return mean


def hidden_by_the_mean(loads: Loads, kind: str) -> tuple[str, ...]:
    """What to say beside means over steps, where a step on its own is clearly more uneven.

    ``loads`` are [steps, layers, places], ``kind`` is what a place is.
    """
    of_steps, of_mean = mean_of_steps(imbalance(loads)), imbalance(loads.mean(axis=0))
    hidden = np.nan_to_num(of_steps - of_mean)
    layer = int(hidden.argmax())
    if not hidden[layer] > _TELLING * of_mean[layer]:
        return ()
    return (
        f"means over {len(loads)} steps: in a step of its own the busiest {kind} of a layer gets "
        f"{of_steps[layer]:.2f} × the mean where the map shows {of_mean[layer]:.2f} ×, as hot "
        "spots move (expert_load)",
    )
