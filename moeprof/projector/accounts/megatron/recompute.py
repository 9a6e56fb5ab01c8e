"""Question: what is left of the kept tensors where the backward pass recomputes, or offloads?

``full``: each layer keeps its input alone. ``selective``: all but what the named modules compute
again (Korthikanti et al. 2022, arXiv 2205.05198, section 5). Offloaded tensors are in host memory
but for one layer's, which is on its way. What was dropped is back while its layer is at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from moeprof.projector.accounts.megatron.layer import Kept
from moeprof.projector.megatron_options import OFFLOADABLE
from moeprof.projector.setting import Setting
from moeprof.specs.remat import Remat

LAYER_INPUT = "layer input"


class Layer(NamedTuple):
    """One layer's tensors: ``held`` per microbatch in flight, ``passing`` only while it works.

    ``all`` are both: what a layer holds whose backward pass recomputes nothing.
    """

    held: tuple[Kept, ...]
    passing: tuple[Kept, ...]

    @property
    def all(self) -> tuple[Kept, ...]:
        """Held and passing."""
        return (*self.held, *self.passing)


_SAVED_AS = {
    "query": "query_proj",
    "key": "key_proj",
    "value": "value_proj",
    "attention output": "context",
    "attention statistics": "context",
    "MLP gate": "mlpwi_0",
    "MLP up": "mlpwi_1",
    "attention's output projection": "out_proj",
    "MLP's output projection": "mlpwo",
}
"""Names by which ``save:a,b`` keeps tensors; what it recomputes is then all else."""


def with_remat(setting: Setting, kept: Iterable[Kept]) -> Layer:
    """Split what a layer keeps under the plan's remat and the offloaded modules."""
    is_all = "activations" in setting.offload
    offloaded = OFFLOADABLE if is_all else setting.megatron.offloaded_modules
    held: list[Kept] = []
    passing: list[Kept] = []
    for tensor in kept:
        is_away = _is_dropped(setting.plan.remat, tensor) or tensor.offload in offloaded
        (passing if is_away else held).append(tensor)
    return Layer(tuple(held), tuple(passing))


def _is_dropped(remat: Remat, tensor: Kept) -> bool:
    if remat.text == "none" or tensor.name == LAYER_INPUT:
        return False
    if remat.recomputed_modules:
        return bool(set(remat.recomputed_modules) & set(tensor.recompute))
    return _SAVED_AS.get(tensor.name) not in remat.saved_names
