"""Question: which layers of a ``config.json`` attend without a score matrix, and how wide?"""

from __future__ import annotations

from typing import Any

from moeprof.errors import SpecError
from moeprof.specs.model import LIGHTNING, LinearSpec
from moeprof.specs.sources.document import Document

# Keys of layers whose weights `ModelSpec` has no place for: state-space and other mixers, encoders,
# several attentions or feed-forwards per layer, streams beside the residual one.
_SOFTMAX = ("full_attention", "attention", "global_attention")
_WINDOWED = ("sliding_attention", "chunked_attention", "local_attention")
_LINEAR = "linear_attention"
_UNKNOWN_MIXERS = (
    "mamba_d_state",
    "mamba_expand",
    "ssm_state_size",
    "ssm_cfg",
    "hybrid_override_pattern",
    "linear_attn_config",
    "attention_hidden_size",
    "encoder_layers",
    "num_encoder_layers",
    "num_sparse_encoder_layers",
    "zero_expert_num",
    "moe_layers_enum",
    "enable_moe_block",
    "altup_num_inputs",
    "hc_mult",
)


def refuse_unknown_mixers(document: Document) -> None:
    """Refuse layers whose weights would be counted as others, or not at all.

    Raises:
        SpecError: a key says that there are some.
    """
    kinds = document.list_of("layer_types", str)
    for kind in dict.fromkeys(kinds or ()):
        if kind not in (*_SOFTMAX, *_WINDOWED, _LINEAR):
            raise document.wrong(
                "layer_types", f"{', '.join((*_SOFTMAX, *_WINDOWED))} or {_LINEAR}", kind
            )
    for key in _UNKNOWN_MIXERS:
        hit = document.found(key)
        if hit is None or hit[1] is False:
            continue
        if key.startswith("mamba") and kinds and "mamba" not in kinds:
            continue
        raise SpecError(
            f"{document.path}: expected a decoder of attention layers, found the key {key}: such "
            "layers are not known. Give a model of the bundled kinds."
        )


def _tell_windows(document: Document, layers: int, notes: list[str]) -> None:
    """Attention within a window has the weights of any other, and less work."""
    kinds = document.list_of("layer_types", str) or []
    window = document.count("sliding_window sliding_window_size") or 0
    longest = document.count("max_position_embeddings") or 0
    count = sum(kind in _WINDOWED for kind in kinds)
    is_on = document.flag("use_sliding_window") is not False and window > 0
    if count or (is_on and not kinds and not 0 < longest <= window):
        who = f"{count} of {layers} layers" if kinds else "layers"
        size = f" of {window} tokens" if window else ""
        notes.append(
            f"{who} attend within a window{size}: the same weights; work and score matrices are "
            "counted as if every token saw all earlier ones"
        )


def linear_fields(document: Document, layers: int, heads: int, notes: list[str]) -> dict[str, Any]:
    """``linear_layers`` and ``linear`` of a `ModelSpec`; empty where all layers have a softmax.

    Raises:
        SpecError: a key is missing or damaged.
    """
    flags = _flags(document, layers)
    _tell_windows(document, layers, notes)
    if not any(flags):
        return {}
    count = sum(flags)
    softmax = layers - count
    every = layers // softmax if softmax else layers + 1
    if flags != [bool((i + 1) % every) for i in range(layers)]:
        notes.append(
            f"the {count} linear layers do not end in a softmax layer each {every}: counted as if "
            "they did, which moves some between pipeline stages"
        )
    return {"linear_layers": count, "linear": _spec(document, heads)}


def _flags(document: Document, layers: int) -> list[bool]:
    """Per layer, whether it is linear."""
    interval = document.count("full_attention_interval", 1)
    lightning = document.list_of("attn_type_list", int, layers)
    if lightning is not None:
        return [kind == 0 for kind in lightning]
    kinds = document.list_of("layer_types", str)
    if kinds is not None and len(kinds) != layers:
        raise document.wrong("layer_types", f"one kind for each of {layers} layers", kinds)
    if kinds is not None:
        return [kind == _LINEAR for kind in kinds]
    if interval is not None:
        return [bool((i + 1) % interval) for i in range(layers)]
    return [False] * layers


def _spec(document: Document, heads: int) -> LinearSpec:
    is_minimax = (document.text("model_type") or "").startswith("minimax")
    is_lightning = is_minimax or document.found("attn_type_list") is not None
    if is_lightning and document.found("linear_num_value_heads") is None:
        dim = document.needed("head_dim")
        return LinearSpec(heads, dim, heads, dim, kind=LIGHTNING)
    return LinearSpec(
        key_heads=document.needed("linear_num_key_heads"),
        key_dim=document.needed("linear_key_head_dim"),
        value_heads=document.needed("linear_num_value_heads"),
        value_dim=document.needed("linear_value_head_dim"),
        conv_width=document.needed("linear_conv_kernel_dim"),
    )
