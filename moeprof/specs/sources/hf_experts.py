"""Question: how do the keys of a ``config.json`` describe experts, shared and dense layers?"""

from __future__ import annotations

from typing import Any

from moeprof.errors import SpecError
from moeprof.specs.sources.document import Document
from moeprof.specs.sources.layer_pattern import DensePattern, dense_pattern

EXPERTS = (
    "num_experts n_routed_experts num_local_experts moe_num_experts ffn_config.moe_num_experts "
    "num_routed_experts num_moe_experts"
)
# The last is also the key of a sampler, which many files carry.
TOP_K = (
    "num_experts_per_tok num_experts_per_token experts_per_token moe_top_k moe_topk moe_k "
    "ffn_config.moe_top_k num_selected_experts top_k"
)
_EXPERT_WIDTH = (
    "moe_intermediate_size moe_ffn_hidden_size expert_intermediate_size expert_ffn_hidden_size "
    "ffn_config.ffn_hidden_size intermediate_size ffn_hidden_size"
)
_DENSE_WIDTH = "intermediate_size_mlp intermediate_size ffn_hidden_size ffn_dim n_inner ffn_hidden"
_FIRST = "first_k_dense_replace first_num_dense_layers moe_layer_start_index"
_SHARED_COUNT = "n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert"
_SHARED_WIDTH = (
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size shared_intermediate_size"
)


def expert_fields(
    document: Document, layers: int, hidden: int, experts: int, notes: list[str]
) -> dict[str, Any]:
    """Fields of a `ModelSpec` for a model of a ``hidden`` width with ``experts`` per MoE layer.

    Raises:
        SpecError: a key is missing or damaged, or the dense layers lie in no known pattern.
    """
    pattern = _pattern(document, layers)
    moe_ffn = document.needed(_EXPERT_WIDTH)
    dense_ffn = document.needed(_DENSE_WIDTH) if pattern.dense_layers else 0
    return {
        "experts": experts,
        "top_k": document.needed(TOP_K),
        "moe_ffn": moe_ffn,
        "dense_layers": pattern.dense_layers,
        "is_interleaved": pattern.is_interleaved,
        "dense_ffn": dense_ffn,
        **_shared(document, hidden, notes),
    }


def dense_fields(document: Document, layers: int, hidden: int, kind: str) -> dict[str, Any]:
    """Fields of a `ModelSpec` for a model without experts."""
    spelled = document.count(_DENSE_WIDTH, 1)
    if spelled is None and kind in ("gpt2", "gpt_neox", "gptj", "bloom", "falcon"):
        spelled = 4 * hidden  # what these families mean by leaving it out
    return {
        "experts": 0,
        "top_k": 0,
        "moe_ffn": 0,
        "shared_experts": 0,
        "dense_layers": layers,
        "dense_ffn": spelled or document.needed(_DENSE_WIDTH),
    }


def _shared(document: Document, hidden: int, notes: list[str]) -> dict[str, int]:
    count = document.count(_SHARED_COUNT)
    width = document.count(_SHARED_WIDTH) or 0
    kind = document.text("model_type") or ""
    if document.flag("residual_moe"):
        notes.append("residual_moe: the dense feed-forward beside the experts counts as shared")
        return {"shared_experts": 1, "shared_ffn": document.needed("intermediate_size")}
    if document.flag("parallel_attn_mlp_res"):
        notes.append(
            "parallel_attn_mlp_res: the dense feed-forward beside experts counts as shared"
        )
        return {"shared_experts": 1, "shared_ffn": hidden}
    if count is None and kind.startswith("llama4"):
        notes.append(f"model_type {kind}: one shared expert, which no key says")
        count = 1
    if count is None:
        count = 1 if width else 0
    return {"shared_experts": count, "shared_ffn": width if count else 0}


def _pattern(document: Document, layers: int) -> DensePattern:
    """Which layers have experts, by the first of the rules whose key is there."""
    every = range(layers)
    kinds = document.list_of("mlp_layer_types", str, layers)
    listed = document.list_of("moe_layers", int)
    frequency = document.found("moe_layer_freq moe_layer_frequency")
    step = document.count("interleave_moe_layer_step", 1)
    sparse_step = document.count("decoder_sparse_step", 1)
    dense_only = document.list_of("mlp_only_layers", int) or []
    period = document.count("expert_layer_period", 1)
    offset = document.count("expert_layer_offset") or 0
    interval = document.count("moe_layer_interval", 1)
    first = document.count(_FIRST) or 0
    if kinds is not None:
        chosen = [i for i in every if kinds[i] != "dense"]
    elif listed is not None:
        chosen = sorted(i for i in listed if isinstance(i, int))
    elif step is not None:
        chosen = [i for i in every if (i + 1) % step == 0]
    elif sparse_step is not None:
        chosen = [i for i in every if (i + 1) % sparse_step == 0 and i not in dense_only]
    elif period is not None:
        chosen = [i for i in every if i % period == offset]
    elif interval is not None:
        last = document.count("moe_layer_end_index")
        end = layers - 1 if last is None else last
        chosen = [i for i in every if first <= i <= end and (i + 1) % interval == 0]
    elif frequency is not None:
        chosen = _by_frequency(document, layers, frequency, first)
    else:
        chosen = [i for i in every if i >= first]
    if not chosen or chosen[0] < 0 or chosen[-1] >= layers:
        raise SpecError(
            f"{document.path}: expected experts in some of its layers 0 to {layers - 1}, found "
            f"{', '.join(map(str, chosen[:4])) or 'none'}. Correct the keys that place them."
        )
    return dense_pattern(document.path, layers, chosen)


def _by_frequency(
    document: Document, layers: int, frequency: tuple[str, object], first: int
) -> list[int]:
    """A number n: every n-th layer from ``first`` on. A list: 1 where a layer has experts."""
    key, value = frequency
    if isinstance(value, list):
        flags = document.list_of(key, int, layers) or []
        return [i for i, flag in enumerate(flags) if flag]
    every = document.count(key, 1) or 1
    return [i for i in range(layers) if i >= first and i % every == 0]
