"""Question: how many floating-point operations does each component of a layer take?

A product of [tokens, n] and [n, m] takes 2 · tokens · n · m. Per token and layer, forward:

attention projections   2 · elements of their matrices
attention core          sequence · heads · (query_dim + value_dim): scores and mixing, each
                        2 · sequence · heads · dim, half of it under a causal mask
                        without flash (and in the bundled model) all of it, and float32 scores
                        pass memory four times: written and read by the softmax, each
linear attention core   4 · heads · key_dim · value_dim: the state is updated and read
router                  2 · hidden · experts
experts                 2 · matrices · hidden · ffn per row; rows are what a strategy makes of them
dispatch and combine    dense path only: products with masks, 2 · capacity · experts · hidden each

The backward pass takes twice the forward's products (gradients of both operands); flash attention's
takes 2.5 times, since it makes the scores again (Dao 2023, arXiv 2307.08691, section 4.1). The
dispatch mask has no gradient of its own.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, NamedTuple

from moeprof.projector.setting import Degrees, Real, Setting
from moeprof.projector.shares import Routed
from moeprof.projector.step_time.rates import expert_item_bytes, item_bytes
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.parameters import Parameter, parameters

Engine = Literal["gemm", "grouped", "attention"]
LayerKind = Literal["dense", "moe"]
_MATRIX_GRADIENTS = 2.0
_FLASH_BACKWARD = 2.5
_CORE = ("attention core", "attention core")
_SCORE_PASSES = 4
_SCORE_BYTES = 4


class Work(NamedTuple):
    """Products of one component for one microbatch: forward, on one device.

    ``backward`` is a multiple of the forward. ``memory_bytes`` is the least that must pass HBM.
    ``part`` is what `recomputed` knows it by.
    """

    name: str
    part: str
    engine: Engine
    flops: Real
    memory_bytes: Real
    backward: float
    formula: str


class Matrices(NamedTuple):
    """Elements of the matrices of one layer, averaged over the layers of a kind."""

    query: float
    key_value: float
    output: float
    router: float
    feedforward: float
    shared: float


def attention_dims(model: ModelSpec) -> tuple[int, int]:
    """Features per head of queries (and keys), and of values."""
    attention = model.attention
    if isinstance(attention, MlaSpec):
        return attention.query_dim, attention.value_dim
    return attention.head_dim, attention.head_dim


def kept_key_width(model: ModelSpec) -> int:
    """Features per token of the keys and values that context parallelism passes on."""
    query, value = attention_dims(model)
    heads = model.attention.kv_heads if isinstance(model.attention, GqaSpec) else model.heads
    return heads * (query + value)


@functools.lru_cache(maxsize=64)
def matrices(model: ModelSpec, kind: LayerKind) -> Matrices:
    """Elements of one layer's matrices; multi-token prediction counts as a MoE layer elsewhere."""
    layers = model.dense_layers if kind == "dense" else model.moe_layers
    found = dict.fromkeys(Matrices._fields, 0.0)
    for parameter in parameters(model):
        if parameter.path[0] == f"{kind}_layers" and len(parameter.shape) > 2 and layers:
            role = _role(parameter)
            if role:
                found[role] += parameter.size / layers
    return Matrices(**found)


def _role(parameter: Parameter) -> str | None:
    _, group, *names = parameter.path
    if group in ("attention", "linear"):
        if names[0] == "out":
            return "output"
        return "key_value" if names[0].startswith(("k", "v")) else "query"
    return {"mlp": "feedforward", "shared": "shared", "router": "router"}.get(group)


def layer_work(
    setting: Setting, degrees: Degrees, tokens: Real, routed: Routed, kind: LayerKind
) -> list[Work]:
    """The products of one layer; ``tokens`` are those of one device in one microbatch."""
    model = setting.model
    sizes = matrices(model, kind)
    works = [
        _product("attention projections", "query", sizes.query, tokens, setting, degrees),
        _product(
            "attention projections", "key and value", sizes.key_value, tokens, setting, degrees
        ),
        _product(
            "attention projections", "attention output", sizes.output, tokens, setting, degrees
        ),
        _core(setting, degrees, tokens),
    ]
    if kind == "dense":
        return [
            *works,
            *_feedforward("dense feed-forward", sizes.feedforward, tokens, setting, degrees),
        ]
    works.append(_product("router", "router", sizes.router, tokens, setting, degrees))
    if sizes.shared:
        works += _feedforward("shared expert", sizes.shared, tokens, setting, degrees)
    return [*works, *_experts(setting, degrees, routed), *_masks(setting, tokens, routed)]


def head_work(setting: Setting, degrees: Degrees, tokens: Real) -> Work:
    """The logits: hidden states times the head."""
    size = setting.model.vocab * setting.model.hidden
    return _product("logits", "head", size, tokens, setting, degrees)


def model_flops_per_token(model: ModelSpec, sequence: int) -> float:
    """Useful operations of training on one token: forward and backward, without recomputation.

    Of the routed experts top_k count; no padding to capacity; the backward pass is twice the
    forward (the usual definition of MFU: Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix
    B), here with causal attention.
    """
    query, value = attention_dims(model)
    softmax = (model.layers - model.linear_layers) * sequence * model.heads * (query + value)
    forward = softmax + 2.0 * model.vocab * model.hidden + model.linear_layers * _linear(model)
    kinds: tuple[LayerKind, ...] = ("dense", "moe")
    for kind in kinds:
        layers = model.dense_layers if kind == "dense" else model.moe_layers
        forward += 2.0 * sum(matrices(model, kind)) * layers
    expert = model.feedforward_matrices * model.hidden * model.moe_ffn
    return 3 * (forward + 2.0 * model.moe_layers * model.top_k * expert)


def _product(
    name: str,
    part: str,
    elements: float,
    tokens: Real,
    setting: Setting,
    degrees: Degrees,
) -> Work:
    """Tokens times matrices that tensor parallelism splits."""
    flops = 2.0 * elements * tokens / degrees.tensor
    item = item_bytes(setting)
    width = math.sqrt(elements)  # of a square matrix with as many elements
    memory = item * (elements + 2 * width * tokens) / degrees.tensor
    return Work(
        name, part, "gemm", flops, memory, _MATRIX_GRADIENTS, "2 · tokens · elements / tensor"
    )


def _feedforward(
    name: str, elements: float, tokens: Real, setting: Setting, degrees: Degrees
) -> list[Work]:
    matrices_in = setting.model.feedforward_matrices - 1
    share = elements / (matrices_in + 1)
    return [
        _product(name, "feed-forward in", matrices_in * share, tokens, setting, degrees),
        _product(name, "feed-forward out", share, tokens, setting, degrees),
    ]


def _core(setting: Setting, degrees: Degrees, tokens: Real) -> Work:
    model = setting.model
    query, value = attention_dims(model)
    softmax = 1 - model.linear_layers / model.layers
    assert degrees.sequence is not None
    pairs = degrees.sequence * model.heads * softmax  # per token, twice those a causal mask leaves
    linear = (1 - softmax) * _linear(model)
    rows = 2 * model.heads * (query + value)
    memory = item_bytes(setting) * rows * tokens / degrees.tensor
    if setting.attention == "flash" and setting.program.has_flash_attention:
        flops = (pairs * (query + value) + linear) * tokens / degrees.tensor
        formula = "tokens · sequence · heads · (query + value dim) / tensor, causal"
        return Work(*_CORE, "attention", flops, memory, _FLASH_BACKWARD, formula)
    flops = (2 * pairs * (query + value) + linear) * tokens / degrees.tensor
    memory = memory + _SCORE_PASSES * _SCORE_BYTES * pairs * tokens / degrees.tensor
    formula = "2 · tokens · sequence · heads · (query + value dim) / tensor, scores through memory"
    return Work(*_CORE, "attention", flops, memory, _MATRIX_GRADIENTS, formula)


def _linear(model: ModelSpec) -> float:
    linear = model.linear
    return 4.0 * linear.value_heads * linear.key_dim * linear.value_dim if linear else 0.0


def _experts(setting: Setting, degrees: Degrees, routed: Routed) -> list[Work]:
    model = setting.model
    local = model.experts / degrees.expert
    matrix = model.hidden * model.moe_ffn / degrees.tensor
    rows = routed.multiplied * routed.overload
    item = expert_item_bytes(setting)
    out = []
    for part, count in (
        ("feed-forward in", model.feedforward_matrices - 1),
        ("feed-forward out", 1),
    ):
        moved = count * local * matrix + routed.computed * (model.hidden + model.moe_ffn)
        out.append(
            Work(
                "routed experts",
                part,
                "gemm" if setting.strategy.kind == "dense" else "grouped",
                2.0 * count * rows * matrix,
                item * moved,
                _MATRIX_GRADIENTS,
                routed.formula,
            )
        )
    return out


def _masks(setting: Setting, tokens: Real, routed: Routed) -> list[Work]:
    """Dispatch and combine of the capacity path: [S, E · C] masks times [S, hidden]."""
    if setting.strategy.kind != "dense":
        return []
    flops = 2.0 * tokens * routed.slots * setting.model.hidden
    moved = item_bytes(setting) * (tokens * routed.slots + routed.computed * setting.model.hidden)
    formula = "2 · tokens · experts · capacity · hidden"
    return [
        Work("dispatch and combine products", "masks", "gemm", flops, moved, 1.0, formula),
        Work("dispatch and combine products", "masks", "gemm", flops, moved, 2.0, formula),
    ]
