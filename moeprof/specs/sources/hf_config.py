"""Question: which model does a Hugging Face ``config.json`` describe?

Families spell the same quantity in different ways, so it is the keys that decide. ``model_type``
is asked only for what no key says: that a projection has a bias, that a norm is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moeprof.errors import SpecError
from moeprof.specs import MODEL_DTYPES
from moeprof.specs.model import LIGHTNING, GqaSpec, LinearSpec, MlaSpec, ModelSpec
from moeprof.specs.sources.document import (
    HUGGING_FACE,
    MOST_LAYERS,
    Document,
    LoadedModel,
    read_text,
    refuse_what_decides,
    tell_the_rest,
)
from moeprof.specs.sources.hf_experts import EXPERTS, TOP_K_ALONE, dense_fields, expert_fields

# Keys of layers whose weights `ModelSpec` has no place for: state-space and other mixers, encoders,
# several attentions or feed-forwards per layer, streams beside the residual one.


_NESTED = "text_config llm_config language_config"
_LAYERS = "num_hidden_layers n_layers n_layer num_layers"
_HIDDEN = "hidden_size d_model n_embd"
_HEADS = "num_attention_heads n_heads n_head"
_KV_HEADS = (
    "num_key_value_heads attn_config.kv_n_heads num_kv_heads n_head_kv multi_query_group_num"
)
_BIASED_QUERIES = ("qwen2", "qwen2_moe")
_GATED_ATTENTION = ("qwen3_next", "qwen3_5")
_NORMED_TOKENS = ("olmoe", "olmo2", "minimax_m2")
_WITHOUT_GATE = ("gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2")
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "gpt2", "bloom")


def read_hf_config(path: Path) -> LoadedModel:
    """Read a ``config.json``, or the one of a folder.

    Modules that predict further tokens are left out, since training code adds them on request; the
    option ``mtp_layers`` says how many the file names.

    Raises:
        SpecError: it cannot be read, is no JSON object, lacks a key, or has a value of another
            kind; or its layers are of a kind that is not known.
    """
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    document, notes = _document(path)
    refuse_unknown_mixers(document)
    refuse_what_decides(document, HUGGING_FACE)
    values: dict[str, Any] = {
        "layers": document.needed(_LAYERS, MOST_LAYERS),
        "hidden": document.needed(_HIDDEN),
        "heads": document.needed(_HEADS),
        "vocab": document.needed("vocab_size padded_vocab_size n_vocab"),
        "name": document.text("_name_or_path") or document.text("model_type") or path.parent.name,
    }
    document.per_layer = values["layers"]
    for spellings in (_LAYERS, _HIDDEN, _HEADS, EXPERTS, TOP_K_ALONE):
        document.agreeing(spellings)
    values["attention"] = _attention(document, values["hidden"], values["heads"], notes)
    values |= linear_fields(document, values["layers"], values["heads"], notes)
    values |= _traits(document, notes)
    kind = document.text("model_type") or ""
    experts = document.count(EXPERTS) or 0
    if experts > 1:
        values |= expert_fields(document, values["layers"], values["hidden"], experts, notes)
    else:
        values |= dense_fields(document, values["layers"], values["hidden"], kind)
        notes.append(
            f"taken for a dense model: {document.path} gives no number of experts above 1 "
            f"(looked for {', '.join(EXPERTS.split())})"
        )
    values |= _dtype(document, notes)
    options = _options(document, notes)
    try:
        model = ModelSpec(**values)
    except SpecError as error:
        raise SpecError(f"{document.path}: {error}") from None
    tell_the_rest(document, HUGGING_FACE, notes)
    return LoadedModel(model, str(path), tuple(notes), options)


def _document(path: Path) -> tuple[Document, list[str]]:
    """The keys of the decoder; those of a model of several parts are one table further down."""
    text = read_text(path, "a Hugging Face config.json")
    try:
        values = json.loads(text)
    except RecursionError:
        raise SpecError(f"{path}: expected a JSON object, found one nested too deep.") from None
    except ValueError as error:
        raise SpecError(f"{path}: expected JSON, found damage ({error}).") from None
    if not isinstance(values, dict):
        raise SpecError(
            f"{path}: expected a JSON object with the keys of a model, found a "
            f"{type(values).__name__}."
        )
    for name in _NESTED.split():
        inner = values.get(name)
        if isinstance(inner, dict) and Document(str(path), inner).found(_LAYERS):
            outer = {key: value for key, value in values.items() if key != name}
            note = f"read from {name}; the other parts of the model are not counted"
            return Document(str(path), outer | inner), [note]
    return Document(str(path), values), []


def _attention(document: Document, hidden: int, heads: int, notes: list[str]) -> MlaSpec | GqaSpec:
    kv_rank = document.count("kv_lora_rank", 1)
    head_dim = document.count("head_dim attention_head_dim", 1)
    kv_heads = document.count(_KV_HEADS, 1)
    if kv_rank is not None:
        return MlaSpec(
            q_lora_rank=document.count("q_lora_rank") or 0,
            kv_lora_rank=kv_rank,
            nope_dim=document.needed("qk_nope_head_dim"),
            rope_dim=document.needed("qk_rope_head_dim"),
            value_dim=document.needed("v_head_dim"),
        )
    _refuse_other_widths(document, head_dim or hidden // heads, heads, kv_heads)
    if head_dim is None:
        if hidden % heads:
            raise SpecError(
                f"{document.path}: expected the key head_dim, since hidden {hidden} is not a "
                f"multiple of {heads} heads, found none. Add it."
            )
        head_dim = hidden // heads
    if kv_heads is None:
        kv_heads = 1 if document.flag("multi_query") else heads
        if kv_heads == heads:
            notes.append(f"no key and value heads are named: as many as query heads, {heads}")
    return GqaSpec(kv_heads, head_dim)


def _refuse_other_widths(
    document: Document, head_dim: int, heads: int, kv_heads: int | None
) -> None:
    """Refuse values, or layers with a window, whose heads are of another width or number.

    Raises:
        SpecError: there are some.
    """
    same = {
        "v_head_dim": head_dim,
        "swa_head_dim": head_dim,
        "swa_v_head_dim": head_dim,
        "swa_num_attention_heads": heads,
        "swa_num_key_value_heads": kv_heads or heads,
    }
    for key, expected in same.items():
        value = document.count(key, 1)
        if value is not None and value != expected:
            raise document.wrong(key, f"{expected}, as in all heads and layers", value)


def _traits(document: Document, notes: list[str]) -> dict[str, Any]:
    """Biases, norms, the head: what no width says."""
    kind = document.text("model_type") or ""
    bias = document.flag("attention_bias qkv_bias use_qkv_bias add_qkv_bias")
    if bias is None and kind in _BIASED_QUERIES:
        bias = True
        notes.append(f"model_type {kind}: query, key and value have a bias, which no key says")
    tied = document.flag("tie_word_embeddings")
    if tied is None:
        tied = kind in _TIED_BY_DEFAULT
        notes.append(f"no tie_word_embeddings: the head is taken as {'' if tied else 'not '}tied")
    is_oss = kind == "gpt_oss"
    softcap = document.found("final_logit_softcapping final_logits_soft_cap")
    return {
        "attention_bias": bool(bias),
        "output_bias": bool(bias) and kind in ("gpt_oss", "phimoe", "qwen3_moe", "llama"),
        "expert_bias": is_oss,
        "has_sinks": is_oss,
        "qk_norm": _qk_norm(document, kind),
        "tied_head": tied,
        "has_attention_gate": _has_gate(document, kind),
        "final_softcap": softcap is not None and bool(softcap[1]),
        "is_gated": kind not in _WITHOUT_GATE and document.text("mlp_hidden_act") != "relu2",
    }


def _has_gate(document: Document, kind: str) -> bool:
    said = document.flag("attn_output_gate")
    return kind.startswith(_GATED_ATTENTION) if said is None else said


def _qk_norm(document: Document, kind: str) -> str:
    if kind in _NORMED_TOKENS or document.text("qk_norm_type") == "per_layer":
        return "all"
    # Llama 4 calls an operation without weights use_qk_norm.
    is_normed = bool(document.flag("use_qk_norm")) and not kind.startswith("llama4")
    return "head" if is_normed or kind.startswith("qwen3") else "none"


def _dtype(document: Document, notes: list[str]) -> dict[str, str]:
    read = document.text("torch_dtype dtype")
    name = (read or "bfloat16").removeprefix("torch.")
    if document.found("quantization_config"):
        method = document.text("quantization_config.quant_method") or "of some kind"
        notes.append(
            f"quantization_config is ignored: it is about the published weights ({method}), and "
            "trained ones are counted in their own dtype"
        )
    if read is None:
        notes.append("no torch_dtype: taken as bfloat16")
    elif name not in MODEL_DTYPES:
        notes.append(f"torch_dtype {read} is not one to train in: taken as bfloat16")
        name = "bfloat16"
    else:
        notes.append(f"torch_dtype {read} read; a dtype that is asked for wins")
    return {"compute_dtype": name, "weight_dtype": name}


def _options(document: Document, notes: list[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    if dtype := document.found("torch_dtype dtype"):
        options["torch_dtype"] = dtype[1]
    modules = (
        document.count("num_nextn_predict_layers num_mtp_modules mtp_num_layers num_mtp_layers")
        or 0
    )
    if modules:
        options["mtp_layers"] = modules
        notes.append(
            f"{modules} module{'s' if modules > 1 else ''} of multi-token prediction left out: "
            "training code adds them on request"
        )
    return options


# Layers that attend without a score matrix.

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
