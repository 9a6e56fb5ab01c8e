"""Question: which weights does a model have, how large, and how is each split over a plan?

Every non-expert matrix is split over (fsdp, expert) along one dimension; expert matrices are split
by expert over ``expert`` and along one more dimension over ``fsdp``; norms and router biases are
replicated. This is MaxText's layout (configs/base.yml, logical axis rules for embed and exp).
A dimension that does not divide stays whole on the axes that do not fit.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from moeprof.specs.model import GATED_DELTANET, GqaSpec, LinearSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan

Split = tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """One weight array. Layers of a kind are stacked along a leading ``layers`` dimension.

    ``fan_in`` scales its random start (0: ones for a norm, zeros for a bias). ``split_axis`` is
    the dimension that FSDP splits, ``expert_axis`` the one that counts experts, ``tensor_axis`` the
    heads or the width that tensor parallelism splits; None: replicated.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    fan_in: int = 0
    split_axis: int | None = None
    expert_axis: int | None = None
    is_trained: bool = True
    tensor_axis: int | None = None

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


@functools.lru_cache(maxsize=64)
def parameters(model: ModelSpec) -> tuple[Parameter, ...]:
    """All weights of a model, in the order of the forward pass.

    The first name of a path is ``embedding``, ``dense_layers``, ``moe_layers``, ``final_norm``,
    ``head`` or ``mtp_layers``; in a layer follow ``attention`` (softmax) or ``linear``, the norms,
    and ``mlp``, or ``router``, ``experts`` and ``shared``.
    """
    hidden, vocab = model.hidden, model.vocab
    out = [
        Parameter(("embedding",), (vocab, hidden), hidden, 1, tensor_axis=0),
        *_dense_layers(model),
        *_moe_layers(model),
        Parameter(("final_norm",), (hidden,)),
    ]
    if not model.tied_head:
        out.append(Parameter(("head",), (hidden, vocab), hidden, 0, tensor_axis=1))
    return (*out, *_mtp_layers(model))


def parameter_count(model: ModelSpec) -> int:
    """Elements of all weights, router biases and multi-token prediction included."""
    return sum(parameter.size for parameter in parameters(model))


def active_parameter_count(model: ModelSpec) -> int:
    """Elements of the weights that take part in one token's prediction of the next.

    Of the routed experts of a layer those are ``top_k``; modules that predict further tokens are
    left out. The embedding and the head count whole, as published figures do with few exceptions.
    """
    return sum(
        p.size * model.top_k // model.experts if "experts" in p.path else p.size
        for p in parameters(model)
        if p.path[0] != "mtp_layers"
    )


def _dense_layers(model: ModelSpec) -> list[Parameter]:
    with_experts = set(model.moe_layer_indices)
    indices = [layer for layer in range(model.layers) if layer not in with_experts]
    rows = _feedforward("mlp", model, model.dense_ffn)
    return _stacked_layers("dense_layers", model, indices, rows)


def _moe_layers(model: ModelSpec) -> list[Parameter]:
    return _stacked_layers(
        "moe_layers", model, list(model.moe_layer_indices), _mixture(model) if model.experts else []
    )


def _mtp_layers(model: ModelSpec) -> list[Parameter]:
    """DeepSeek-V3 Technical Report, section 2.2: embedding and head are those of the model."""
    if not model.mtp_layers:
        return []
    hidden = model.hidden
    feedforward = _mixture(model) if model.experts else _feedforward("mlp", model, model.dense_ffn)
    rows = [
        Parameter(("embedding_norm",), (hidden,)),
        Parameter(("hidden_norm",), (hidden,)),
        Parameter(("projection",), (2 * hidden, hidden), 2 * hidden, 0, tensor_axis=1),
        *_norms(model),
        *_softmax_attention(model),
        *feedforward,
    ]
    return [_stacked("mtp_layers", model.mtp_layers, row) for row in rows]


def _stacked_layers(
    kind: str, model: ModelSpec, indices: list[int], feedforward: list[Parameter]
) -> list[Parameter]:
    """The weights of the layers at ``indices``; each kind of attention has a stack of its own."""
    linear = len(set(model.linear_layer_indices) & set(indices))
    stacks = [
        (len(indices), _norms(model)),
        (len(indices) - linear, _softmax_attention(model)),
        (linear, _linear_attention(model, model.linear) if model.linear else []),
        (len(indices), feedforward),
    ]
    return [_stacked(kind, layers, row) for layers, rows in stacks if layers for row in rows]


def _mixture(model: ModelSpec) -> list[Parameter]:
    hidden, experts, ffn = model.hidden, model.experts, model.moe_ffn
    inward = ((experts, hidden, ffn), hidden, 1, 0)
    rows = [
        Parameter(("router", "gate"), (hidden, experts), hidden, 0),
        Parameter(("router", "bias"), (experts,), is_trained=False),
    ]
    rows += [
        Parameter(("experts", name), *inward, tensor_axis=2)
        for name in _inward_names(model.is_gated)
    ]
    rows.append(Parameter(("experts", "down"), (experts, ffn, hidden), ffn, 2, 0, tensor_axis=1))
    if model.expert_bias:
        rows += [
            Parameter(("experts", f"{name}_bias"), (experts, ffn), expert_axis=0, tensor_axis=1)
            for name in _inward_names(model.is_gated)
        ]
        rows.append(Parameter(("experts", "down_bias"), (experts, hidden), expert_axis=0))
    if model.shared_width:
        rows += _feedforward("shared", model, model.shared_width)
    return rows


def _norms(model: ModelSpec) -> list[Parameter]:
    return [Parameter((name,), (model.hidden,)) for name in ("attention_norm", "mlp_norm")]


def _softmax_attention(model: ModelSpec) -> list[Parameter]:
    if isinstance(model.attention, MlaSpec):
        rows, value_dim = _mla(model, model.attention), model.attention.value_dim
    else:
        rows, value_dim = _gqa(model, model.attention), model.attention.head_dim
    hidden, heads = model.hidden, model.heads
    if model.has_attention_gate:
        rows.append(Parameter(("gate",), (hidden, heads, value_dim), hidden, 0, tensor_axis=1))
    if model.has_sinks:
        rows.append(Parameter(("sinks",), (heads,), tensor_axis=0))
    rows.append(
        Parameter(("out",), (heads, value_dim, hidden), heads * value_dim, 2, tensor_axis=0)
    )
    if model.output_bias:
        rows.append(Parameter(("out_bias",), (hidden,)))
    return [_under("attention", row) for row in rows]


def _mla(model: ModelSpec, mla: MlaSpec) -> list[Parameter]:
    hidden, heads, q_rank, kv_rank = model.hidden, model.heads, mla.q_lora_rank, mla.kv_lora_rank
    kv_dim = mla.nope_dim + mla.value_dim
    if q_rank:
        query = [
            Parameter(("q_down",), (hidden, q_rank), hidden, 0),
            Parameter(("q_norm",), (q_rank,)),
            Parameter(("q_up",), (q_rank, heads, mla.query_dim), q_rank, 0, tensor_axis=1),
        ]
    else:
        shape = (hidden, heads, mla.query_dim)
        query = [Parameter(("query",), shape, hidden, 0, tensor_axis=1)]
    return [
        *query,
        Parameter(("kv_down",), (hidden, kv_rank + mla.rope_dim), hidden, 0),
        Parameter(("kv_norm",), (kv_rank,)),
        Parameter(("kv_up",), (kv_rank, heads, kv_dim), kv_rank, 0, tensor_axis=1),
    ]


def _gqa(model: ModelSpec, gqa: GqaSpec) -> list[Parameter]:
    hidden, dim = model.hidden, gqa.head_dim
    heads = {"query": model.heads, "key": gqa.kv_heads, "value": gqa.kv_heads}
    rows = [
        Parameter((name,), (hidden, count, dim), hidden, 0, tensor_axis=1)
        for name, count in heads.items()
    ]
    if model.attention_bias:
        rows += [
            Parameter((f"{name}_bias",), (count, dim), tensor_axis=0)
            for name, count in heads.items()
        ]
    if model.qk_norm == "head":
        rows += [Parameter((f"{name}_norm",), (dim,)) for name in ("query", "key")]
    if model.qk_norm == "all":
        rows += [
            Parameter((f"{name}_norm",), (heads[name], dim), tensor_axis=0)
            for name in ("query", "key")
        ]
    return rows


def _linear_attention(model: ModelSpec, linear: LinearSpec) -> list[Parameter]:
    """Queries, keys, values and output gate by one matrix each, then what the kind adds.

    Gated DeltaNet: a write strength and a decay per value head, a depthwise convolution over
    queries, keys and values, a step bias and a decay rate per head, a norm of one head. Lightning:
    a norm of all values.
    """
    hidden, keys, values = model.hidden, linear.key_width, linear.value_width
    widths = {"query": keys, "key": keys, "value": values, "gate": values}
    rows = [
        Parameter((name,), (hidden, width), hidden, 0, tensor_axis=1)
        for name, width in widths.items()
    ]
    if linear.kind == GATED_DELTANET:
        heads = linear.value_heads
        rows += [
            Parameter(("strength",), (hidden, heads), hidden, 0, tensor_axis=1),
            Parameter(("decay",), (hidden, heads), hidden, 0, tensor_axis=1),
            Parameter(("step_bias",), (heads,), tensor_axis=0),
            Parameter(("decay_rate",), (heads,), tensor_axis=0),
            Parameter(("norm",), (linear.value_dim,)),
        ]
    else:
        rows.append(Parameter(("norm",), (values,), tensor_axis=0))
    if linear.conv_width:
        width = linear.conv_width
        rows.append(Parameter(("conv",), (2 * keys + values, width), width, 0, tensor_axis=0))
    rows.append(Parameter(("out",), (values, hidden), values, 1, tensor_axis=0))
    return [_under("linear", row) for row in rows]


def _feedforward(name: str, model: ModelSpec, ffn: int) -> list[Parameter]:
    """SwiGLU ``down(silu(gate(x)) · up(x))``, or without gate ``down(gelu(up(x)))``."""
    hidden = model.hidden
    rows = [
        Parameter((name, inward), (hidden, ffn), hidden, 0, tensor_axis=1)
        for inward in _inward_names(model.is_gated)
    ]
    return [*rows, Parameter((name, "down"), (ffn, hidden), ffn, 1, tensor_axis=0)]


def _inward_names(is_gated: bool) -> tuple[str, ...]:
    return ("gate", "up") if is_gated else ("up",)


def _stacked(kind: str, layers: int, row: Parameter) -> Parameter:
    return replace(
        row,
        path=(kind, *row.path),
        shape=(layers, *row.shape),
        split_axis=_after_layers(row.split_axis),
        expert_axis=_after_layers(row.expert_axis),
        tensor_axis=_after_layers(row.tensor_axis),
    )


def _after_layers(axis: int | None) -> int | None:
    return None if axis is None else axis + 1


def _under(name: str, row: Parameter) -> Parameter:
    return replace(row, path=(name, *row.path))


def _real(axes: Split, plan: ParallelPlan) -> Split:
    return tuple(axis for axis in axes if plan.degree((axis,)) > 1)
