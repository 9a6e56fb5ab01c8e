"""Question: what do fully sharded weights take while a layer is at work?

The layer's weights in use and the next one's, prefetched, and one layer's gradients before they are
reduced, all unsharded in the compute format (Zhao et al. 2023, arXiv 2304.11277, section 3.3). The
head's at the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprof.projector.accounts.megatron.layer import Known
from moeprof.projector.accounts.megatron.sizes import Sizes
from moeprof.projector.accounts.megatron.tally import Kind
from moeprof.projector.breakdown import Row
from moeprof.projector.rows import ceil_div
from moeprof.projector.setting import Count
from moeprof.specs.parameters import Parameter

_SOURCE = "Zhao et al. 2023, arXiv 2304.11277, section 3.3: gathered, prefetched, not yet reduced"


def gathered_layers(
    parameters: Sequence[Parameter], kind: Kind, k: Known, sizes: Sizes
) -> list[Row]:
    """Three copies of a layer; none without FSDP."""
    stack = "moe_layers" if kind.is_moe else "dense_layers"
    absent = "attention" if kind.is_linear else "linear"
    layer = [p for p in parameters if p.path[0] == stack and p.path[1] != absent]
    elements = sum(_on_rank(p, sizes) // p.shape[0] for p in layer)
    return _rows("gathered layers and gradients not yet reduced", 3 * elements * k.width, sizes)


def gathered_head(parameters: Sequence[Parameter], k: Known, sizes: Sizes) -> list[Row]:
    """The head and its gradient; none without FSDP."""
    elements = sum(_on_rank(p, sizes) for p in parameters if p.path[0] == "head")
    return _rows("gathered head and its gradient", 2 * elements * k.width, sizes)


def _rows(name: str, size: Count, sizes: Sizes) -> list[Row]:
    if np.all(np.equal(sizes.fsdp, 1)):
        return []
    size = size * np.not_equal(sizes.fsdp, 1) if isinstance(sizes.fsdp, np.ndarray) else size
    return [Row(name, "temp", "temporaries", size, "unsharded · c", _SOURCE, "medium")]


def _on_rank(parameter: Parameter, sizes: Sizes) -> Count:
    if parameter.expert_axis is not None:
        return ceil_div(parameter.size, sizes.expert * sizes.expert_tensor)
    return (
        ceil_div(parameter.size, sizes.tensor)
        if parameter.tensor_axis is not None
        else parameter.size
    )
