"""Question: which weights does a model have, how large, and how is each split over a plan?

Every non-expert matrix is split over (fsdp, expert) along one dimension; expert matrices are split
by expert over ``expert`` and along one more dimension over ``fsdp``; norms and router biases are
replicated. This is MaxText's layout (configs/base.yml, logical axis rules for embed and exp).
A dimension that does not divide stays whole on the axes that do not fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan

Split = tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """One weight array. Layers of a kind are stacked along a leading ``layers`` dimension.

    ``fan_in`` scales its random start (0: ones for a norm, zeros for a bias). ``split_axis`` is
    the dimension that FSDP splits, ``expert_axis`` the one that counts experts; None: replicated.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    fan_in: int = 0
    split_axis: int | None = None
    expert_axis: int | None = None
    is_trained: bool = True

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def partition(parameter: Parameter, plan: ParallelPlan) -> tuple[Split, ...]:
    """The mesh axes that split each dimension, outermost first; ``()`` leaves it whole.

    Axes of degree 1 are left out.
    """
    splits: list[Split] = [()] * len(parameter.shape)
    candidates: tuple[Split, ...] = (("fsdp", "expert"), ("fsdp",), ("expert",))
    if parameter.expert_axis is not None:
        splits[parameter.expert_axis] = _real(("expert",), plan)
        candidates = (("fsdp",),)
    axis = parameter.split_axis
    if axis is not None:
        fitting = (c for c in candidates if parameter.shape[axis] % plan.degree(c) == 0)
        splits[axis] = _real(next(fitting, ()), plan)
    return tuple(splits)


def parameters(model: ModelSpec) -> tuple[Parameter, ...]:
    """All weights of a model, in the order of the forward pass."""
    out = [
        Parameter(("embedding",), (model.vocab, model.hidden), model.hidden, 1),
        *_dense_layers(model),
        *_moe_layers(model),
        Parameter(("final_norm",), (model.hidden,)),
    ]
    if not model.tied_head:
        out.append(Parameter(("head",), (model.hidden, model.vocab), model.hidden, 0))
    return tuple(out)


def parameter_count(model: ModelSpec) -> int:
    """Elements of all weights, router biases included."""
    return sum(parameter.size for parameter in parameters(model))


def _dense_layers(model: ModelSpec) -> list[Parameter]:
    if not model.dense_layers:
        return []
    rows = [*_block(model), *_feedforward("mlp", model.hidden, model.dense_ffn)]
    return [_stacked("dense_layers", model.dense_layers, row) for row in rows]


def _moe_layers(model: ModelSpec) -> list[Parameter]:
    hidden, experts, ffn = model.hidden, model.experts, model.moe_ffn
    rows = [
        *_block(model),
        Parameter(("router", "gate"), (hidden, experts), hidden, 0),
        Parameter(("router", "bias"), (experts,), is_trained=False),
        Parameter(("experts", "gate"), (experts, hidden, ffn), hidden, 1, 0),
        Parameter(("experts", "up"), (experts, hidden, ffn), hidden, 1, 0),
        Parameter(("experts", "down"), (experts, ffn, hidden), ffn, 2, 0),
    ]
    if model.shared_experts:
        rows += _feedforward("shared", hidden, model.shared_experts * ffn)
    return [_stacked("moe_layers", model.moe_layers, row) for row in rows]


def _block(model: ModelSpec) -> list[Parameter]:
    """What dense and MoE layers have in common: two norms and the attention."""
    norms = [Parameter((name,), (model.hidden,)) for name in ("attention_norm", "mlp_norm")]
    if isinstance(model.attention, MlaSpec):
        return [*norms, *_mla(model, model.attention)]
    return [*norms, *_gqa(model, model.attention)]


def _mla(model: ModelSpec, mla: MlaSpec) -> list[Parameter]:
    hidden, heads, q_rank, kv_rank = model.hidden, model.heads, mla.q_lora_rank, mla.kv_lora_rank
    query_dim, kv_dim = mla.nope_dim + mla.rope_dim, mla.nope_dim + mla.value_dim
    values = heads * mla.value_dim
    rows = [
        Parameter(("q_down",), (hidden, q_rank), hidden, 0),
        Parameter(("q_norm",), (q_rank,)),
        Parameter(("q_up",), (q_rank, heads, query_dim), q_rank, 0),
        Parameter(("kv_down",), (hidden, kv_rank + mla.rope_dim), hidden, 0),
        Parameter(("kv_norm",), (kv_rank,)),
        Parameter(("kv_up",), (kv_rank, heads, kv_dim), kv_rank, 0),
        Parameter(("out",), (heads, mla.value_dim, hidden), values, 2),
    ]
    return [_under("attention", row) for row in rows]


def _gqa(model: ModelSpec, gqa: GqaSpec) -> list[Parameter]:
    hidden, heads, kv_heads, dim = model.hidden, model.heads, gqa.kv_heads, gqa.head_dim
    rows = [
        Parameter(("query",), (hidden, heads, dim), hidden, 0),
        Parameter(("key",), (hidden, kv_heads, dim), hidden, 0),
        Parameter(("value",), (hidden, kv_heads, dim), hidden, 0),
        Parameter(("out",), (heads, dim, hidden), heads * dim, 2),
    ]
    return [_under("attention", row) for row in rows]


def _feedforward(name: str, hidden: int, ffn: int) -> list[Parameter]:
    """SwiGLU: ``down(silu(gate(x)) · up(x))``."""
    return [
        Parameter((name, "gate"), (hidden, ffn), hidden, 0),
        Parameter((name, "up"), (hidden, ffn), hidden, 0),
        Parameter((name, "down"), (ffn, hidden), ffn, 1),
    ]


def _stacked(kind: str, layers: int, row: Parameter) -> Parameter:
    return Parameter(
        (kind, *row.path),
        (layers, *row.shape),
        row.fan_in,
        None if row.split_axis is None else row.split_axis + 1,
        None if row.expert_axis is None else row.expert_axis + 1,
        row.is_trained,
    )


def _under(name: str, row: Parameter) -> Parameter:
    return Parameter((name, *row.path), row.shape, row.fan_in, row.split_axis, row.expert_axis)


def _real(axes: Split, plan: ParallelPlan) -> Split:
    return tuple(axis for axis in axes if plan.degree((axis,)) > 1)
