"""Question: what is left of the kept tensors where the backward pass recomputes, or offloads?

``full``: each layer keeps its input alone. ``selective``: all but what the named modules compute
again (Korthikanti et al. 2022, arXiv 2205.05198, section 5). Offloaded tensors are in host memory
but for one layer's, which is on its way. What was dropped is back while its layer is at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from moeprof.projector.accounts.megatron.layer import Kept
from moeprof.projector.setting import Setting

LAYER_INPUT = "layer input"


class Layer(NamedTuple):
    """One layer's tensors: ``held`` per microbatch in flight, ``passing`` only while it works."""

    held: tuple[Kept, ...]
    passing: tuple[Kept, ...]


def with_remat(setting: Setting, kept: Iterable[Kept]) -> Layer:
    """Split what a layer keeps under the plan's remat and the offloaded modules."""
    remat, offloaded = setting.plan.remat, setting.megatron.offloaded_modules
    modules = set(remat.recomputed_modules)
    held: list[Kept] = []
    passing: list[Kept] = []
    for tensor in kept:
        dropped = bool(modules & set(tensor.recompute)) or (
            remat.text == "full" and tensor.name != LAYER_INPUT
        )
        is_away = dropped or tensor.offload in offloaded
        (passing if is_away else held).append(tensor)
    return Layer(tuple(held), tuple(passing))
