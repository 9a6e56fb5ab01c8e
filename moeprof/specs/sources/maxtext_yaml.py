"""Question: which model, and which run options, does a MaxText YAML file name?

The keys are those of MaxText's base.yml and of its models' files. A key that a file leaves out has
MaxText's own default there; the widths of the model have none that means anything, so they must be
given, or a ``model_name``.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from moeprof.errors import SpecError, one_line
from moeprof.specs import DTYPE_BYTES, MODEL_DTYPES
from moeprof.specs.model import GqaSpec, LinearSpec, MlaSpec, ModelSpec
from moeprof.specs.presets import load_preset, preset_key
from moeprof.specs.sources.document import (
    MAXTEXT,
    MOST_LAYERS,
    Document,
    LoadedModel,
    read_text,
    refuse_what_decides,
    tell_the_rest,
)
from moeprof.specs.sources.hf_experts import dense_pattern

_HEAD_DIM = 128
"""MaxText's default."""
_WIDTHS = "base_emb_dim base_num_decoder_layers"
_HYBRID = ("qwen3_next", "qwen3_5")
_KNOWN_BLOCKS = (
    "default",
    "llama2",
    "mistral",
    "mixtral",
    "deepseek",
    "gemma",
    "gemma2",
    "gemma3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "gpt3",
    "gpt_oss",
    "llama4",
    "olmo3",
)
# Blocks with weights that `ModelSpec` has no place for.
_OTHER_BLOCKS = ("deepseek4", "envy", "gemma4", "gemma4_small", "qwen3_custom_moe")
RUN_OPTIONS = (
    "model_name",
    "per_device_batch_size",
    "max_target_length",
    "gradient_accumulation_steps",
    "remat_policy",
    "dtype",
    "weight_dtype",
    "grad_dtype",
    "mu_dtype",
    "opt_type",
    "quantization",
    "capacity_factor",
    "sparse_matmul",
    "megablox",
    "ragged_buffer_factor",
    "use_ring_of_experts",
    "use_deepep",
    "use_turbo_deepep",
    "moe_use_deepep",
    "use_turbo_grouped_gemm",
    "num_vocab_tiling",
    "cast_logits_to_fp32",
    "float32_weight_sum",
    "optimizer_memory_host_offload",
    "enable_checkpointing",
    "eval_per_device_batch_size",
    "scan_layers",
    "num_layers_per_pipeline_stage",
    "num_pipeline_repeats",
    "num_pipeline_microbatches",
    "attention",
    "mtp_num_layers",
    "num_slices",
)


def read_maxtext_yaml(path: Path) -> LoadedModel:
    """Read a MaxText configuration.

    Its options are the keys of `RUN_OPTIONS`, and ``ici_*`` and ``dcn_*`` degrees, as written.

    Raises:
        SpecError: it cannot be read, is no YAML mapping, names neither widths nor a model that is
            known, or a value is of another kind.
    """
    return read_document(Document(str(path), read_mapping(path)))


def read_document(document: Document, is_preset: bool = True) -> LoadedModel:
    """Read the keys of a MaxText configuration; ``is_preset``: its model_name may be a preset.

    Raises:
        SpecError: as of `read_maxtext_yaml`.
    """
    path = document.path
    options = {
        key: value
        for key, value in document.values.items()
        if key in RUN_OPTIONS or (key.startswith(("ici_", "dcn_")) and key.endswith("parallelism"))
    }
    refuse_what_decides(document, MAXTEXT)
    document.asked.update(options)
    named = document.text("model_name")
    key = preset_key(named) if named and is_preset else None
    if key is not None:
        notes = [f"model_name {named}: the preset {key}"]
        if document.found(_WIDTHS):
            notes.append("the widths in the file are ignored, as model_name wins in MaxText")
        model = replace(load_preset(key), **_dtypes(document, notes))
        tell_the_rest(document, MAXTEXT, notes)
        return LoadedModel(model, path, tuple(notes), options)
    if document.found(_WIDTHS) is None:
        told = f"model_name {named!r}, which is no preset" if named else "neither"
        raise SpecError(
            f"{path}: expected base_emb_dim, base_num_decoder_layers and so on, or a model_name "
            f"that is known, found {told}. Give the YAML file of the model."
        )
    notes = []
    values = _values(document, notes)
    try:
        model = ModelSpec(**values)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    tell_the_rest(document, MAXTEXT, notes)
    return LoadedModel(model, path, tuple(notes), options)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as MaxText reads it: ``1e-6`` is a number, and a key stands once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping without doubled keys, as by OmegaConf."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        doubled = sorted({name for name in names if names.count(name) > 1} - {"<<"})
        if doubled:
            raise yaml.YAMLError(f"key {doubled[0]} stands twice")
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


_EXPONENT = re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


@functools.cache
def default_values() -> Mapping[str, object]:
    """MaxText 0.2.5's own values of the keys that a projection reads."""
    text = (files("moeprof.specs") / "maxtext_defaults.csv").read_text(encoding="utf-8")
    return {row["key"]: parsed(row["value"]) for row in csv.DictReader(text.splitlines())}


def parsed(text: str) -> object:
    """One value, as a file has it behind a key.

    Raises:
        SpecError: it is no YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"expected YAML, found damage ({one_line(error)[:200]}).") from None


def read_mapping(path: Path) -> dict[str, object]:
    """The keys and values of a file.

    Raises:
        SpecError: it cannot be read, or is no mapping.
    """
    try:
        values = parsed(read_text(path, "a MaxText YAML file"))
    except SpecError as error:
        if str(error).startswith(str(path)):
            raise
        raise SpecError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        found = "an empty file" if values is None else f"a {type(values).__name__}"
        raise SpecError(f"{path}: expected a YAML mapping of keys to values, found {found}.")
    return {str(key): value for key, value in values.items()}


_REFERENCE = re.compile(r"\$\{\s*([^{}]*?)\s*\}")
_DEEPEST = 20


def referred(values: Mapping[str, object], key: str) -> object:
    """The value of a key, with ``${other}`` in it replaced by that key's, as OmegaConf does.

    Raises:
        SpecError: there is no such key, or its reference leads back to it.
    """
    value = values[key]
    for _ in range(_DEEPEST):
        found = _REFERENCE.search(value) if isinstance(value, str) else None
        if found is None:
            return value
        assert isinstance(value, str)
        if found[1] not in values:
            raise SpecError(f"expected the name of a key in ${{}}, found {found[1]!r}.")
        other = values[found[1]]
        is_all = found[0] == value.strip()
        value = other if is_all else value[: found.start()] + str(other) + value[found.end() :]
    raise SpecError(f"expected ${{}} to lead to a value, found {values[key]!r}.")


def _values(document: Document, notes: list[str]) -> dict[str, Any]:
    block = document.text("decoder_block") or "default"
    if block in _OTHER_BLOCKS:
        raise SpecError(
            f"{document.path}: key decoder_block: expected one of {', '.join(_KNOWN_BLOCKS)}, "
            f"found {block}, whose layers hold more than their widths say."
        )
    if block not in _KNOWN_BLOCKS:
        notes.append(f"decoder_block {block} is not known: taken for a plain decoder of its widths")
    scale = document.count("global_parameter_scale", 1) or 1
    if scale > 1:
        raise SpecError(
            f"{document.path}: expected global_parameter_scale 1, found {scale}. Give the widths "
            "that it leads to."
        )
    layers = document.needed("base_num_decoder_layers", MOST_LAYERS)
    if block == "gemma2":
        layers *= 2
        notes.append("decoder_block gemma2: each of MaxText's layers is two, local and global")
    if document.flag("mlp_bias") and block != "gpt_oss":
        notes.append(f"mlp_bias True: biases of feed-forwards of {block} are not counted")
    activations = document.list_of("mlp_activations", str)
    return {
        "name": document.text("model_name") or Path(document.path).stem,
        "layers": layers,
        "hidden": document.needed("base_emb_dim"),
        "heads": document.needed("base_num_query_heads"),
        "vocab": document.needed("vocab_size"),
        "attention": _attention(document, notes),
        "tied_head": bool(document.flag("logits_via_embedding")),
        "is_gated": activations is None or len(activations) > 1,
        "mtp_layers": document.count("mtp_num_layers") or 0,
        "attention_bias": bool(document.flag("attention_bias")),
        "output_bias": bool(document.flag("attention_bias")) and block == "gpt_oss",
        "expert_bias": bool(document.flag("mlp_bias")) and block == "gpt_oss",
        "has_sinks": bool(document.flag("attention_sink")),
        "qk_norm": _qk_norm(document, block),
        "final_softcap": bool((document.found("final_logits_soft_cap") or ("", 0))[1]),
        "has_attention_gate": block in _HYBRID,
        **_linear(document, block, layers),
        **_feedforward(document, layers, notes),
        **_dtypes(document, notes),
    }


def _attention(document: Document, notes: list[str]) -> MlaSpec | GqaSpec:
    if document.text("attention_type") == "mla":
        return MlaSpec(
            q_lora_rank=document.count("q_lora_rank") or 0,
            kv_lora_rank=document.needed("kv_lora_rank"),
            nope_dim=document.needed("qk_nope_head_dim"),
            rope_dim=document.needed("qk_rope_head_dim"),
            value_dim=document.needed("v_head_dim"),
        )
    head_dim = document.count("head_dim", 1)
    if head_dim is None:
        notes.append(f"no head_dim: MaxText's default of {_HEAD_DIM}")
    return GqaSpec(document.needed("base_num_kv_heads"), head_dim or _HEAD_DIM)


def _qk_norm(document: Document, block: str) -> str:
    # Llama 4 calls an operation without weights use_qk_norm.
    is_normed = bool(document.flag("use_qk_norm")) and block != "llama4"
    return "head" if is_normed or block in _HYBRID else "none"


def _linear(document: Document, block: str, layers: int) -> dict[str, Any]:
    if block not in _HYBRID:
        return {}
    every = document.count("inhomogeneous_layer_cycle_interval full_attention_interval", 1) or 4
    return {
        "linear_layers": layers - layers // every,
        "linear": LinearSpec(
            key_heads=document.needed("gdn_num_key_heads linear_num_key_heads"),
            key_dim=document.needed("gdn_key_head_dim linear_key_head_dim"),
            value_heads=document.needed("gdn_num_value_heads linear_num_value_heads"),
            value_dim=document.needed("gdn_value_head_dim linear_value_head_dim"),
            conv_width=document.needed("gdn_conv_kernel_dim linear_conv_kernel_dim"),
        ),
    }


def _feedforward(document: Document, layers: int, notes: list[str]) -> dict[str, Any]:
    experts = document.count("num_experts") or 1
    if experts == 1:
        notes.append("taken for a dense model: num_experts is absent or 1, MaxText's default")
        return {
            "experts": 0,
            "top_k": 0,
            "moe_ffn": 0,
            "shared_experts": 0,
            "dense_layers": layers,
            "dense_ffn": document.needed("base_mlp_dim"),
        }
    step = document.count("interleave_moe_layer_step", 1) or 1
    first = document.count("first_num_dense_layers") or 0
    chosen = [i for i in range(layers) if i >= first and (i + 1) % step == 0]
    pattern = dense_pattern(document.path, layers, chosen)
    return {
        "experts": experts,
        "top_k": document.needed("num_experts_per_tok"),
        "moe_ffn": _expert_width(document),
        "shared_experts": document.count("shared_experts") or 0,
        "dense_layers": pattern.dense_layers,
        "is_interleaved": pattern.is_interleaved,
        "dense_ffn": document.needed("base_mlp_dim") if pattern.dense_layers else 0,
    }


def _expert_width(document: Document) -> int:
    """``base_moe_mlp_dim``, or ``base_mlp_dim`` where it is absent or -1, its default."""
    if document.values.get("base_moe_mlp_dim") == -1:
        return document.needed("base_mlp_dim")
    return document.needed("base_moe_mlp_dim base_mlp_dim")


def _dtypes(document: Document, notes: list[str]) -> dict[str, Any]:
    """MaxText computes in bfloat16 and keeps weights in float32 unless told otherwise."""
    asked = {
        "compute_dtype": ("dtype", document.text("dtype") or "bfloat16"),
        "weight_dtype": ("weight_dtype", document.text("weight_dtype") or "float32"),
    }
    found = {}
    for field, (key, name) in asked.items():
        if name not in (*MODEL_DTYPES, *DTYPE_BYTES):
            raise document.wrong(key, f"one of {', '.join(DTYPE_BYTES)}", name)
        if name not in MODEL_DTYPES:
            notes.append(f"{key} {name} stays an option; the model is read in bfloat16")
        found[field] = name if name in MODEL_DTYPES else "bfloat16"
    return found
