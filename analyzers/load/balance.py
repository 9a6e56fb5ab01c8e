"""Question: how far is a load from being spread evenly?

Loads are tables of counts, int or float, [layers, places], where a place is an expert, a rank or a
node; where it says so, [steps, layers, places]. Balanced means that every place of a layer has the
layer's mean. A layer waits for its fullest place in every step anew, so the largest load of a step
is taken first and the mean over steps last: a hot spot that moves from step to step has even sums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Loads = npt.NDArray[np.float64]


def imbalance(loads: Loads) -> Loads:
    """Largest load over the mean, [layers], or [steps, layers] by step; NaN without load."""
    means = loads.mean(axis=-1)
    largest: Loads = np.divide(
        loads.max(axis=-1), means, out=np.full(means.shape, np.nan), where=means > 0
    )
    return largest


def overload(loads: Loads) -> tuple[Loads, Loads]:
    """Overload factors: of each place in each layer [layers, places], and over all layers [places].

    The first is the load over the layer's mean; the second the same of the sums over layers, which
    is what memory that is kept for every layer grows by.
    """
    means = loads.mean(axis=1, keepdims=True)
    by_layer: Loads = np.divide(loads, means, out=np.full(loads.shape, np.nan), where=means > 0)
    sums = loads.sum(axis=0)
    whole: Loads = sums / sums.mean() if sums.sum() > 0 else np.full(loads.shape[1], np.nan)
    return by_layer, whole


def drift(first: Loads, last: Loads) -> Loads:
    """Share of the assignments that would have to move to turn one load into the other, [layers].

    Half the sum of the differences of the places' shares; NaN where a layer has no load.
    """
    shares = [_shares(loads) for loads in (first, last)]
    moved: Loads = np.abs(shares[0] - shares[1]).sum(axis=1) / 2
    return moved


def _shares(loads: Loads) -> Loads:
    sums = loads.sum(axis=1, keepdims=True)
    shares: Loads = np.divide(loads, sums, out=np.full(loads.shape, np.nan), where=sums > 0)
    return shares


def tax(rank_loads: Loads, product_ns: float) -> Loads:
    """Time that each layer would gain at most with equal loads, in ns, [layers].

    The products of a rank take time in proportion to its rows, and a layer ends with its fullest
    rank. `product_ns` is what the products of all layers take on the mean rank, so a row costs
    product_ns / Σ_l mean_l, and layer l loses (max_l − mean_l) of these. Of [steps, layers, places]
    that is the mean over the steps.
    """
    stacked = rank_loads if rank_loads.ndim == 3 else rank_loads[None]
    means = stacked.mean(axis=2)
    whole = float(means.sum(axis=1).mean())
    lost = (stacked.max(axis=2) - means).mean(axis=0)
    gain: Loads = lost * (product_ns / whole if whole > 0 else np.nan)
    return gain
