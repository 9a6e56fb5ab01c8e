"""Question: between which multiples of an estimate does what is measured lie?

From benchmarks/step_time.py. MaxText on AMD with experts spread inside a domain and FSDP across:
all 19 published throughputs, which the rates come from, lie within a tenth. Elsewhere nothing was
fitted: six steps of the bundled model on two H200 took 1.2 to 1.8 times as long; of 17 published
runs of Megatron on NVIDIA none was faster than estimated by more than a hundredth, and four in five
took at most 2.1 times as long; small models, whose launches a device waits for, took longest. Other
plans on AMD were not measured: they get both ends.
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.projector.setting import Setting


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
