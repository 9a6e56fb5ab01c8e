"""Question: which of many plans fit, and with which batch at most?

The verdicts of `moeprof.projector.breakdown`, over arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moeprof.projector.breakdown import BORDERLINE
from moeprof.projector.memory import project_many
from moeprof.projector.setting import Degrees, Setting

MOST_PDBS = 256
"""No batch above this is tried where none is given."""

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Fit(NamedTuple):
    """Memory of each plan, in bytes, and what becomes of it.

    ``margin`` is the share of the pool that stays free, negative where it does not do; NaN where a
    size is not known. ``fraction`` of the device is XLA's.
    """

    args: Numbers
    temp: Numbers
    outside: Numbers
    margin: Numbers
    fraction: Numbers
    is_outside: Mask
    """Too much beside the pool."""

    @property
    def has_room(self) -> Mask:
        """Verdict ``fits``."""
        return (self.margin > BORDERLINE) & ~self.is_outside

    @property
    def is_borderline(self) -> Mask:
        """Verdict ``borderline``."""
        return (np.abs(self.margin) <= BORDERLINE) & ~self.is_outside

    @property
    def is_oom(self) -> Mask:
        """Verdict ``oom``."""
        return self.is_outside | (self.margin < -BORDERLINE)

    @property
    def is_unknown(self) -> Mask:
        """No verdict."""
        return np.isnan(self.margin)


def fit(setting: Setting, degrees: Degrees, *, leaves_room: bool = False) -> Fit:
    """What each plan needs, and whether that is there.

    ``leaves_room``: where the setting's fraction leaves too little beside the pool, XLA gets less,
    in whole hundredths.
    """
    sizes = project_many(setting, degrees)
    device = setting.hardware.hbm_bytes
    fraction = np.full(sizes.args.shape, setting.mem_fraction)
    if leaves_room:
        left = np.floor(100 * (1 - np.nan_to_num(sizes.outside) / device)) / 100
        fraction = np.where(left > 0, np.minimum(fraction, left), fraction)
    pool = np.floor(device * fraction)
    if setting.world == "megatron":  # PyTorch's allocator takes what others leave
        pool = np.maximum(device - sizes.outside, 0)
    left_over = pool - sizes.args - sizes.temp
    margin = np.where(pool > 0, left_over / np.where(pool > 0, pool, 1), -np.inf)
    is_known = ~np.isnan(margin + sizes.outside)
    is_outside = is_known & (sizes.outside > device - pool)
    margin = np.where(is_known, margin, np.nan)
    return Fit(sizes.args, sizes.temp, sizes.outside, margin, fraction, is_outside)


def largest_batches(
    setting: Setting, degrees: Degrees, *, leaves_room: bool = False
) -> npt.NDArray[np.int64]:
    """The largest pdbs up to `MOST_PDBS` with which each plan fits with room; 1 where none does.

    Memory never falls as pdbs grows, so all plans are bisected at once.
    """
    count = np.asarray(degrees.data).shape[0]
    low, high = np.ones(count, dtype=np.int64), np.full(count, MOST_PDBS + 1, dtype=np.int64)
    open_ = np.flatnonzero(
        fit(setting, degrees._replace(pdbs=low), leaves_room=leaves_room).has_room
    )
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        part = Degrees(*(np.broadcast_to(np.asarray(v), count)[open_] for v in degrees))
        fits = fit(setting, part._replace(pdbs=middle), leaves_room=leaves_room).has_room
        low[open_] = np.where(fits, middle, low[open_])
        high[open_] = np.where(fits, high[open_], middle)
        open_ = open_[high[open_] - low[open_] > 1]
    return low
