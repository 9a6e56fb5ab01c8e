"""Question: over how many ranks is each thing split, and what does a rank hold between its steps?

Megatron's groups (Megatron-LM, core/parallel_state.py): devices = DP · TP · CP · PP, and experts
lie inside the same devices, EDP = devices / (ETP · EP · PP). So ``data · fsdp`` of a plan is all of
DP here, and ``expert`` is no further factor of the devices.

Per parameter: a weight and a gradient that accumulates over microbatches on every rank, and the
optimizer's master copy and moments, split over the ranks that share the parameter (Megatron-LM,
docs/source/api-guide/dist_optimizer.md: 18 B without, 6 + 12/DP with the distributed optimizer in
bf16). Experts are shared by EDP ranks, all else by DP · CP. FSDP splits weights and gradients too.

More than this state stays allocated between steps: Megatron-LM's functional tests log it, as
``mem-allocated-bytes`` after a step. Where it can be told apart, it is of two kinds. A copy of
embedding and head in the compute format: 0.50 GiB of gpt3_7b_tp4_pp1 on A100 (0.50 by this), 0.19
of mixtral_8x22b_tp2pp8 (0.19). And, on Hopper and later with experts, 0.20 to 0.22 GiB in the two
smallest tests (0.19 by this): workspaces of 32 MiB each, one of cuBLAS, one of TransformerEngine
and one per stream of its grouped GEMM (TransformerEngine, module/base.py: 32 MiB on Hopper, 4 MiB
before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moeprof.errors import SpecError
from moeprof.projector.breakdown import (
    Row,
)
from moeprof.projector.setting import (
    Amount,
    Count,
    Degrees,
    Setting,
    ceil_div,
)
from moeprof.projector.shares import buffer_factor
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.parameters import Parameter


class Sizes(NamedTuple):
    """Degrees and token counts of one rank and microbatch; counts may be arrays.

    ``data`` is DP with CP, over which gradients are reduced and the optimizer is split;
    ``expert_data`` EDP, ``fsdp`` the ranks that weights are sharded over, which context parallelism
    joins. ``tokens`` [T] are those of a tensor-parallel group, ``shard`` [t] what one
    of its ranks holds between blocks, ``rows`` [N] what a rank's experts receive. None where
    sequence or batch are not known.
    """

    tensor: Count
    expert: Count
    expert_tensor: Count
    data: Count
    expert_data: Count
    fsdp: Count
    tokens: Count | None
    shard: Count | None
    rows: Count | None


def devices_of(degrees: Degrees) -> Count:
    """Devices of a plan in Megatron's sense: DP · TP · CP · PP."""
    return degrees.data * degrees.fsdp * degrees.tensor * degrees.context * degrees.pipeline


def sizes_of(setting: Setting, degrees: Degrees) -> Sizes:
    """Groups and token counts. Rows received: t · top-k · ETP · overload.

    An even router sends every rank of the expert group as many rows as its tokens leave with; ranks
    that share an expert (ETP) gather each other's. Megatron allocates what arrives; with a capacity
    factor, experts are padded to it (``--moe-pad-expert-input-to-capacity``).
    """
    pdbs, sequence = degrees.pdbs, degrees.sequence
    tokens = shard = rows = None
    if pdbs is not None and sequence is not None:
        tokens = ceil_div(pdbs * sequence, degrees.context)
        shard = (
            ceil_div(tokens, degrees.tensor) if setting.megatron.has_sequence_parallel else tokens
        )
        factor = buffer_factor(setting, degrees)
        rows = times(shard * setting.model.top_k * degrees.expert_tensor, factor)
    devices = devices_of(degrees)
    return Sizes(
        tensor=degrees.tensor,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor,
        data=degrees.data * degrees.fsdp * degrees.context,
        expert_data=ceil_div(devices, degrees.expert_tensor * degrees.expert * degrees.pipeline),
        fsdp=_sharded(degrees.fsdp, degrees.context),
        tokens=tokens,
        shard=shard,
        rows=rows,
    )


def times(amount: Count, factor: Amount) -> Count:
    """``amount · factor``, rounded up to whole elements."""
    rounded = np.ceil(amount * factor)
    return rounded.astype(np.int64) if isinstance(rounded, np.ndarray) else int(rounded)


def at_least_one(count: Count) -> Count:
    """The count, 1 where it is less."""
    return np.maximum(count, 1) if isinstance(count, np.ndarray) else max(count, 1)


def _sharded(fsdp: Count, context: Count) -> Count:
    """FSDP shards over the ranks of context parallelism too; 1 where nothing is sharded."""
    return 1 + (fsdp * context - 1) * (fsdp > 1)


ENDS = ("embedding", "head", "embedding_copy", "head_copy")
NAMES = ("gradients of embedding and head, not accumulated", "GEMM workspaces")
MIB = 2**20
_TESTS = "Megatron-LM, tests/functional_tests: mem-allocated-bytes after a step"
_STREAMS = 4
_BEFORE_HOPPER = ("a100_40", "a100_80")


def between_steps(setting: Setting, parameters: Sequence[Parameter], sizes: Sizes) -> list[Row]:
    """Rows; none for other accounts, workspaces of NVIDIA's devices alone."""
    if setting.megatron.account != "megatron":
        return []
    rows = []
    ends = sum(p.size for p in parameters if p.path[0] in ENDS)
    if ends:
        width = max(DTYPE_BYTES[setting.precision.compute], 2)
        size, formula = ceil_div(ends, sizes.tensor) * width, f"V · d / TP · {width} B"
        rows.append(Row(NAMES[0], "temp", "temporaries", size, formula, _TESTS, "medium"))
    if setting.hardware.vendor == "NVIDIA":
        rows.append(_workspaces(setting))
    return rows


def _workspaces(setting: Setting) -> Row:
    count = 2 + (_STREAMS if setting.model.experts else 0)
    each = 4 if setting.hardware.key in _BEFORE_HOPPER else 32
    formula = f"{count} · {each} MiB"
    size = count * each * MIB
    return Row(NAMES[1], "temp", "temporaries", size, formula, _TESTS, "medium")


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
            f"optimizer: framework megatron has {', '.join(_OPTIMIZERS)}, "
            f"found {setting.optimizer!r}."
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
