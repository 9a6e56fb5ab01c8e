"""Question: what are all parts of a step-time estimate computed from, and what do they add up to?

From a setting's degrees, and what a run tunes about time; to rows, and a band around their sum.

The band is from benchmarks/step_time.py. MaxText on AMD with experts spread inside a domain and
FSDP across: all 19 published throughputs, which the rates come from, lie within a tenth. Elsewhere
nothing was fitted: six steps of the bundled model on two H200 took 1.2 to 1.8 times as long; of 17
published runs of Megatron on NVIDIA none was faster than estimated by more than a hundredth, and
four in five took at most 2.1 times as long; small models, whose launches a device waits for, took
longest. Other plans on AMD were not measured: they get both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moeprof.errors import SpecError
from moeprof.projector.breakdown import Confidence
from moeprof.projector.setting import Degrees, Real, Setting
from moeprof.projector.step_time.rates import Groups, Links, Rates, groups_of, links_of, rates_of


class Band(NamedTuple):
    """Multiples of the estimated seconds."""

    low: float
    high: float


_FITTED = Band(0.9, 1.1)
_NOT_FITTED = Band(1.0, 2.1)


def band_of(setting: Setting) -> Band:
    """The band of a setting's world, device and plan."""
    if setting.hardware.vendor != "AMD" or setting.world == "megatron":
        return _NOT_FITTED
    plan = setting.plan
    is_measured = plan.expert == setting.hardware.domain and plan.devices == plan.expert * plan.fsdp
    return _FITTED if is_measured else Band(_FITTED.low, _NOT_FITTED.high)


KINDS = ("compute", "memory passes", "exchange", "collectives", "pipeline", "host")


@dataclass(frozen=True)
class TimeRow:
    """One component of a step on the slowest stage; ``kind`` is one of `KINDS`.

    ``seconds`` are those that nothing hides, ``hidden_s`` those that run beside other work; an
    array of them in a vectorised evaluation.
    """

    name: str
    kind: str
    seconds: Real
    hidden_s: Real
    formula: str
    source: str
    confidence: Confidence


def total_s(rows: tuple[TimeRow, ...]) -> Real:
    """Seconds of a step: what is not hidden adds up."""
    seconds: Real = 0.0
    for row in rows:
        seconds = seconds + row.seconds
    return seconds


SYNCS = (4, 2, 1, 0)
"""Waits of the host for the device per MoE layer, forward, by level of ``sync_free``: of router,
permutation, dispatch and grouped GEMM; level 1 removes the first two, 2 all but the permutation's,
3 all (ROCm/rocm-blogs, primus-moe-package, table 2)."""


@dataclass(frozen=True)
class Tuning:
    """What a run does about time.

    ``sync_free`` is Primus's level of MoE without waits for the device, 0 to 3, Megatron's world
    only: a JAX program has static shapes and never waits. ``overlaps_exchange``: dispatch and
    combine of one microbatch run beside the products of another (1F1B with all-to-all overlap;
    DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1).
    """

    sync_free: int = 0
    overlaps_exchange: bool = False

    def __post_init__(self) -> None:
        """Check the level."""
        if self.sync_free not in range(len(SYNCS)):
            raise SpecError(f"sync-free level: expected 0 to 3, found {self.sync_free}.")


PLAIN = Tuning()


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
