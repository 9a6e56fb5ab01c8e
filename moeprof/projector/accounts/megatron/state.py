"""Question: how large are the weights, gradients and optimizer state of a stage?

Per parameter: a weight and a gradient that accumulates over microbatches on every rank, and the
optimizer's master copy and moments, split over the ranks that share the parameter (Megatron-LM,
docs/source/api-guide/dist_optimizer.md: 18 B without, 6 + 12/DP with the distributed optimizer in
bf16). Experts are shared by EDP ranks, all else by DP · CP. FSDP splits weights and gradients too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moeprof.errors import SpecError
from moeprof.projector.accounts.megatron.between_steps import ENDS
from moeprof.projector.accounts.megatron.sizes import Sizes, at_least_one, times
from moeprof.projector.breakdown import Row
from moeprof.projector.rows import ceil_div
from moeprof.projector.setting import Count, Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.parameters import Parameter

SOURCE = "Megatron-LM docs, dist_optimizer: 18 B, or 6 + 12/DP B, per parameter"
_MOMENTS = ("first moment", "second moment")
_OPTIMIZERS = ("adamw", "muon", "sgd")


class Held(NamedTuple):
    """Parameters of one class on one rank, and over how many ranks their state can be split."""

    name: str
    elements: Count
    ranks: Count
    matrices: Count
    formula: str


def held_classes(parameters: Sequence[Parameter], sizes: Sizes) -> tuple[Held, ...]:
    """A stage's parameters on one rank, by how they are split.

    Routed experts: over EP and ETP. Heads, widths and vocabulary: over TP. Norms, router and what
    MLA projects down: on every rank.
    """
    experts = [p for p in parameters if p.expert_axis is not None]
    split = [p for p in parameters if p.expert_axis is None and p.tensor_axis is not None]
    whole_ones = [p for p in parameters if p.expert_axis is None and p.tensor_axis is None]
    groups = sizes.expert * sizes.expert_tensor
    return tuple(
        Held(
            name,
            ceil_div(_count(group), parts),
            ranks,
            ceil_div(_count(_matrices(group)), parts),
            formula,
        )
        for name, group, parts, ranks, formula in (
            ("routed experts", experts, groups, sizes.expert_data, "parameters / (EP · ETP)"),
            ("split over TP", split, sizes.tensor, sizes.data, "parameters / TP"),
            ("replicated", whole_ones, 1, sizes.data, "parameters"),
        )
        if group
    )


def state_rows(setting: Setting, parameters: Sequence[Parameter], sizes: Sizes) -> tuple[Row, ...]:
    """Rows of weights, gradients, master copy and moments.

    Raises:
        SpecError: Megatron has no such optimizer.
    """
    if setting.optimizer not in _OPTIMIZERS:
        raise SpecError(
            f"optimizer: world megatron has {', '.join(_OPTIMIZERS)}, found {setting.optimizer!r}."
        )
    precision, held = setting.precision, held_classes(parameters, sizes)
    rows = []
    for group in held:
        rows += [
            _row(f"weights, {group.name}", "params", group, precision.weights, sizes),
            _row(f"gradients, {group.name}", "grads", group, precision.gradients, sizes),
        ]
    for group in held:
        rows += _optimizer_rows(setting, group)
    return (*rows, *_fp8_copies(setting, held))


def _fp8_copies(setting: Setting, held: Sequence[Held]) -> list[Row]:
    """What TransformerEngine keeps of weights over the microbatches of a step."""
    width = DTYPE_BYTES[setting.precision.compute]
    if width > 1 or setting.megatron.account != "megatron":
        return []
    size = sum(2 * width * group.matrices for group in held)
    source = "TransformerEngine: fp8 weights and their transposes are cached between microbatches"
    formula = f"2 · matrices of layers · {width} B"
    return [Row("weights in fp8, also transposed", "args", "params", size, formula, source, "low")]


def _row(name: str, kind: str, group: Held, dtype: str, sizes: Sizes) -> Row:
    shards = at_least_one(group.ranks * sizes.fsdp // sizes.data)
    size = ceil_div(group.elements, shards) * DTYPE_BYTES[dtype]
    over = "" if np.all(shards == 1) else " / FSDP"
    formula = f"{group.formula}{over} · {DTYPE_BYTES[dtype]} B"
    return Row(name, "args", kind, size, formula, SOURCE, "high")


def _optimizer_rows(setting: Setting, group: Held) -> list[Row]:
    precision, options = setting.precision, setting.megatron
    ranks, over = (group.ranks, _over(group)) if setting.has_distributed_optimizer else (1, "")
    on_device = 0.0 if "optimizer" in setting.offload else 1 - options.optimizer_on_host
    vectors = group.elements - group.matrices
    parts = (
        ("master weights", precision.master, group.elements),
        ("first moment", precision.first_moment, group.elements),
        ("second moment", precision.second_moment, {"adamw": group.elements, "muon": vectors}),
    )
    rows = []
    for name, dtype, per_optimizer in parts:
        elements = (
            per_optimizer.get(setting.optimizer, 0)
            if isinstance(per_optimizer, dict)
            else per_optimizer
        )
        if dtype is None or (isinstance(elements, int) and elements == 0):
            continue
        width = DTYPE_BYTES[dtype]
        share = on_device if name in _MOMENTS else 1.0
        size = times(ceil_div(elements, ranks) * width, share)
        formula = f"{group.formula}{over} · {width} B"
        if share < 1:
            formula += f" · {share:g} on the device"
        rows.append(
            Row(f"{name}, {group.name}", "args", "optimizer", size, formula, SOURCE, "high")
        )
    return rows


def _over(group: Held) -> str:
    return " / EDP" if group.name == "routed experts" else " / (DP · CP)"


def _matrices(parameters: Sequence[Parameter]) -> list[Parameter]:
    """What Muon treats as matrices: neither vectors nor the vocabulary's embedding and head."""
    return [p for p in parameters if p.fan_in and p.path[0] not in ENDS]


def _count(parameters: Sequence[Parameter]) -> int:
    return sum(p.size for p in parameters)
