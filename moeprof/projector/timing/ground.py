"""Question: what are all parts of a step-time estimate computed from?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.setting import Degrees, Setting
from moeprof.projector.timing.groups import Groups, groups_of
from moeprof.projector.timing.links import Links, links_of
from moeprof.projector.timing.rates import Rates, rates_of
from moeprof.projector.timing.reals import Real
from moeprof.projector.timing.tuning import Tuning


class Ground(NamedTuple):
    """``tokens`` are those of one device in one microbatch.

    ``again`` is the share of layers whose forward work is done again where their remat asks for it.
    """

    setting: Setting
    degrees: Degrees
    tuning: Tuning
    rates: Rates
    links: Links
    groups: Groups
    tokens: Real
    again: Real


def ground_of(setting: Setting, degrees: Degrees, tuning: Tuning) -> Ground:
    """What a setting gives; the degrees may be arrays."""
    assert degrees.pdbs is not None
    assert degrees.sequence is not None
    rates = rates_of(setting.hardware)
    tokens = degrees.pdbs * degrees.sequence / degrees.context
    again: Real = 1.0
    if setting.recomputed_layers is not None:
        per_stage = setting.model.layers / np.asarray(degrees.pipeline)
        again = np.minimum(setting.recomputed_layers / per_stage, 1.0)
    links = links_of(setting.hardware, rates)
    groups = groups_of(setting.world, degrees, links.domain)
    return Ground(setting, degrees, tuning, rates, links, groups, tokens, again)


def memory_bytes_per_s(ground: Ground) -> float:
    """What passes HBM, at the rate reached."""
    return ground.setting.hardware.hbm_bytes_per_s * ground.rates.memory
