"""What is alive at each moment of a step, per program that trains: how it is written down.

An account lists, for each moment that may be the fullest, which tensors are alive (`Live`): a shape
in the symbols below, how many of them, and the evidence for that number. Sizes are never listed.

====== =======================================================================================
T      tokens of a device; p its sequences, S its positions of each, S_k all positions of one
d      hidden width, d_t its part where tensor parallelism splits it (layer inputs);
       f, f_s, f_d widths of a routed, the shared, a dense layer's feed-forward
q k v  features per token of queries, keys, values; o of the mixed values; H heads
V      vocabulary; h rows of that width of the logits' gradient or of the head's, the smaller
K E El experts of a token, of a layer, of a rank; x = min(El, 3) dense stand-ins of ragged_dot;
       El_own, El_far: El, 0 with EP and without; El_many: El, 0 for one expert, see `_stand_ins`
n      rows of capacity buffers on a rank: sequences · E · C, C = ceil(S·K/E) · factor
N      rows of a dropless buffer after fan-out to experts; R rows that arrive by DeepEP;
       N_far, T_far: N and T, 0 without an exchange
M      entries of one capacity mask: sequences · S · E · C (M_many, n_many: 0 for one
       sequence)
W_moe… elements of one layer's weights, gathered over the axes that split them
W_gathered those of a MoE layer that are gathered over any axis; W_rest all but experts;
       W_all_experts the experts of all ranks; W_fetched a rank's experts where gathered, else 0
P_experts elements of all layers' routed experts on the device; P_moved where gathered, P_laid
       where a rank has several experts or they are gathered; P_rest the layers' other weights
L      elements of the logits, or of the gradients that take their place, see `_logits` (L_far)
G…     elements of gradients on the device: of MoE layers, dense layers, the rest, one
       of that (G_end), the largest array (G_leaf)
====== =======================================================================================

Tensor parallelism divides f, f_s, f_d, V, heads and their features (MaxText's rules for mlp,
vocab, heads); context parallelism divides T and S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeprof.projector.breakdown import (
    Confidence,
    Row,
    product_row,
)
from moeprof.projector.setting import (
    Amount,
    Count,
    Degrees,
    Setting,
    ceil_div,
    larger,
    smaller,
)
from moeprof.projector.shares import buffer_factor, capacity
from moeprof.projector.state import gathered_elements, gradient_dtype, held_elements, trained_of
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.parameters import Parameter

Extent = dict[str, Amount | None]


def extent_of(setting: Setting, degrees: Degrees, held: Sequence[Parameter]) -> Extent:
    """The dimensions by symbol; None where sequence or batch is not known."""
    model = setting.model
    pdbs, sequence, tensor = degrees.pdbs, degrees.sequence, degrees.tensor
    extent: Extent = {
        "d": model.hidden,
        "d_t": ceil_div(model.hidden, tensor),
        "f": ceil_div(model.moe_ffn, tensor),
        "f_s": ceil_div(model.shared_width, tensor),
        "f_d": ceil_div(model.dense_ffn, tensor),
        "V": ceil_div(model.vocab, tensor),
        "H": ceil_div(model.heads, tensor),
        "K": model.top_k,
        "E": model.experts,
        "El": ceil_div(model.experts, degrees.expert),
        "x": smaller(ceil_div(model.experts, degrees.expert), 3),
        **_attention(model, tensor),
        **_weights(degrees, held, model.experts),
        **_gradients(setting, degrees, held),
    }
    tokens = positions = None
    if pdbs is not None and sequence is not None:
        positions = ceil_div(sequence, degrees.context)
        tokens = pdbs * positions
    extent.update(T=tokens, p=pdbs, S=positions, S_k=sequence)
    item = DTYPE_BYTES[setting.precision.compute]
    extent["h"] = None if tokens is None else smaller(tokens * 4 // item, model.hidden)
    extent.update(_rows(setting, degrees, tokens))
    extent.update(_stand_ins(setting, degrees, extent), **_logits(setting, degrees, extent))
    matrices = extent["W_all_experts"]
    assert matrices is not None
    extent["W_waiting"] = matrices * _has_hosts(setting, degrees)
    return extent


def _stand_ins(setting: Setting, degrees: Degrees, extent: Extent) -> Extent:
    """Experts whose masked rows are in memory once more than the products need.

    None where three copies of the rows exceed the device: XLA then computes one of them again, as
    in its plan of DeepSeek-V3 (`loop_select_fusion.2.remat4`, maxtext_compiled.json). Before that
    the four together are as large as the device, so that more rows never need less.
    """
    rows, tokens, local = extent["N"], extent["T"], extent["El"]
    far = smaller(degrees.expert - 1, 1)
    if rows is None or tokens is None or local is None:
        return dict.fromkeys(("El_many", "El_own", "El_far", "N_far", "T_far"), None)
    item = DTYPE_BYTES[setting.precision.compute]
    copy = larger(local * rows * setting.model.hidden * item, 1)
    left = smaller(larger(setting.hardware.hbm_bytes / copy - 3, 0), 1)
    return {
        "El_many": local * smaller(local - 1, 1) * left,
        "El_own": local * (1 - far),
        "El_far": local * far,
        "N_far": rows * far,
        "T_far": tokens * far,
    }


def _logits(setting: Setting, degrees: Degrees, extent: Extent) -> Extent:
    """Elements of what a step of MaxText 0.2.5 keeps of the loss, through the layers' loop.

    The logits, until the head's gradient is made of them. Where that is the smaller of both it is
    made before: on several hosts (L) it is there before it is reduced; on one, where tokens are
    exchanged by ragged_all_to_all (L_far), those of head and embedding are, reduced.
    """
    tokens, vocab, hidden = extent["T"], extent["V"], extent["d"]
    head, end = extent["W_head"], extent["G_end"]
    if tokens is None or vocab is None or hidden is None or head is None or end is None:
        return {"L": None, "L_far": None}
    hosts = _has_hosts(setting, degrees)
    far = smaller(degrees.expert - 1, 1) * (1 - hosts)
    is_many = smaller(larger(tokens - hidden, 0), 1)
    logits = tokens * vocab
    return {
        "L": logits * (1 - is_many * hosts) + head * is_many * hosts,
        "L_far": logits * (1 - is_many * (far + hosts))
        + 2 * end * is_many * far
        + head * is_many * hosts,
    }


def _has_hosts(setting: Setting, degrees: Degrees) -> Amount:
    """1 where a plan is of several hosts, 0 on one."""
    others = degrees.data * degrees.tensor * degrees.context * degrees.pipeline
    devices = degrees.fsdp * degrees.expert * others
    return smaller(larger(devices - setting.hardware.slice_devices, 0), 1)


def _rows(setting: Setting, degrees: Degrees, tokens: Count | None) -> Extent:
    model = setting.model
    unknown: Extent = dict.fromkeys(("n", "n_many", "N", "R", "M", "M_many"), None)
    if not model.experts:
        return {symbol: 0 for symbol in unknown}
    if tokens is None or degrees.pdbs is None or degrees.sequence is None:
        return unknown
    fan_out = tokens * model.top_k * buffer_factor(setting, degrees)
    places: Count = 0
    if setting.strategy.capacity_factor is not None:
        slots = capacity(degrees.sequence, model, setting.strategy.capacity_factor)
        places = degrees.pdbs * model.experts * slots
    positions = ceil_div(degrees.sequence, degrees.context)
    return {
        "n": places,
        "N": _whole_rows(fan_out),
        "R": tokens * degrees.expert,
        "M": places * positions,
        "n_many": places * smaller(degrees.pdbs - 1, 1),
        "M_many": places * positions * smaller(degrees.pdbs - 1, 1),
    }


def _whole_rows(rows: Amount) -> Amount:
    floor = np.floor(rows).astype(np.int64)
    return int(floor) if floor.ndim == 0 else floor


def _attention(model: ModelSpec, tensor: Count) -> Extent:
    """Features per token of queries, keys, values and mixed values of a softmax layer."""
    attention = model.attention
    if isinstance(attention, MlaSpec):
        query = model.heads * (attention.nope_dim + attention.rope_dim)
        mixed = model.heads * attention.value_dim
        key, value = query, mixed
    else:
        query = mixed = model.heads * attention.head_dim
        key = value = attention.kv_heads * attention.head_dim
    widths = {"q": query, "k": key, "v": value, "o": mixed}
    return {symbol: ceil_div(width, tensor) for symbol, width in widths.items()}


def _weights(degrees: Degrees, held: Sequence[Parameter], experts: int) -> Extent:
    """Gathered elements: of one layer per kind and part, of embedding and head."""
    sizes: dict[str, Amount] = {
        "W_moe": 0,
        "W_experts": 0,
        "W_dense": 0,
        "W_embedding": 0,
        "W_head": 0,
    }
    for parameter in held:
        kind = parameter.path[0]
        elements = gathered_elements(parameter, degrees)
        if kind in ("moe_layers", "dense_layers"):
            symbol = "W_moe" if kind == "moe_layers" else "W_dense"
            layer = elements // parameter.shape[0]
            sizes[symbol] = sizes[symbol] + layer
            if parameter.expert_axis is not None and kind == "moe_layers":
                sizes["W_experts"] = sizes["W_experts"] + layer
        elif kind.startswith("embedding"):
            sizes["W_embedding"] = elements
        elif kind.startswith("head"):
            sizes["W_head"] = elements
    if isinstance(sizes["W_head"], int) and not sizes["W_head"]:
        sizes["W_head"] = sizes["W_embedding"]
    is_gathered = smaller(degrees.fsdp * degrees.context - 1, 1)
    stacks = (p for p in held if p.expert_axis is not None and p.path[0] == "moe_layers")
    sizes["P_experts"] = sum((held_elements(p, degrees) for p in stacks), 0)
    sizes["P_moved"] = sizes["P_experts"] * is_gathered
    layers = ("moe_layers", "dense_layers", "mtp_layers")
    others = (p for p in held if p.path[0] in layers and p.expert_axis is None)
    sizes["P_rest"] = sum((held_elements(p, degrees) for p in others), 0)
    local = ceil_div(experts, degrees.expert)
    sizes["P_laid"] = sizes["P_experts"] * smaller(local - 1 + is_gathered, 1)
    sizes["W_all_experts"] = sizes["W_experts"] * degrees.expert
    sizes["W_rest"] = sizes["W_moe"] - sizes["W_experts"]
    sizes["W_fetched"] = sizes["W_experts"] * is_gathered
    sizes["W_gathered"] = sizes["W_moe"] - sizes["W_experts"] * (1 - is_gathered)
    return dict(sizes)


def _gradients(setting: Setting, degrees: Degrees, held: Sequence[Parameter]) -> Extent:
    """Elements of the gradients on the device, split as the weights are."""
    sizes: dict[str, Amount] = {"G_moe": 0, "G_dense": 0, "G_ends": 0, "G_end": 0, "G_leaf": 0}
    symbols = {"moe_layers": "G_moe", "mtp_layers": "G_moe", "dense_layers": "G_dense"}
    for parameter in trained_of(setting, held):
        symbol = symbols.get(parameter.path[0], "G_ends")
        elements = held_elements(parameter, degrees)
        sizes[symbol] = sizes[symbol] + elements
        sizes["G_leaf"] = larger(sizes["G_leaf"], elements)
        if symbol == "G_ends" and len(parameter.shape) > 1:
            sizes["G_end"] = elements
    return {**sizes, "G": sizes["G_moe"] + sizes["G_dense"] + sizes["G_ends"]}


@dataclass(frozen=True)
class Live:
    """``count`` tensors of a shape: ``N d`` or, with a format other than compute's, ``T V:f32``.

    Formats: ``f32``, ``i32``, ``u8``, and ``w``, ``g``, ``l`` for those of weights, gradients and
    logits. A count may be a half where two tensors are alive for a part of the moment each.
    """

    what: str
    shape: str
    count: float
    evidence: str
    confidence: Confidence = "medium"
    kind: str = "temporaries"

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dimensions."""
        return tuple(self.shape.partition(":")[0].split())

    @property
    def is_routed(self) -> bool:
        """Whether the tensor grows with the rows that a rank receives."""
        return "N" in self.symbols


def live_row(live: Live, extent: Extent, setting: Setting, times: float = 1) -> Row:
    """The row of a list's entry; ``times`` multiplies its count."""
    return product_row(
        live.what,
        live.count * times,
        {symbol: extent[symbol] for symbol in live.symbols},
        item_bytes(live.shape.partition(":")[2], setting),
        kind=live.kind,
        source=live.evidence,
        confidence=live.confidence,
        is_routed=live.is_routed,
    )


def item_bytes(suffix: str, setting: Setting) -> int:
    """Bytes of an element in the format that a shape's suffix names; none: compute's."""
    fixed = {"f32": 4, "i32": 4, "u8": 1}
    if suffix in fixed:
        return fixed[suffix]
    precision = setting.precision
    named = {
        "": precision.compute,
        "w": precision.weights,
        "g": gradient_dtype(setting),
        "l": precision.logits,
    }
    return DTYPE_BYTES[named[suffix]]
