"""Question: how do the keys of a ``config.json`` describe experts, shared and dense layers?"""

from __future__ import annotations

from typing import Any

from moeprof.specs.sources.document import Document
from moeprof.specs.sources.hf_placement import placed_experts

EXPERTS = (
    "num_experts n_routed_experts num_local_experts moe_num_experts ffn_config.moe_num_experts "
    "num_routed_experts num_moe_experts"
)
TOP_K_ALONE = (
    "num_experts_per_tok num_experts_per_token experts_per_token moe_top_k moe_topk moe_k "
    "ffn_config.moe_top_k num_selected_experts"
)
TOP_K = f"{TOP_K_ALONE} top_k"
"""The last is also the key of a sampler, which many files carry."""
_EXPERT_WIDTH = (
    "moe_intermediate_size moe_ffn_hidden_size expert_intermediate_size expert_ffn_hidden_size "
    "ffn_config.ffn_hidden_size intermediate_size ffn_hidden_size"
)
_DENSE_WIDTH = (
    "intermediate_size_mlp dense_intermediate_size intermediate_size ffn_hidden_size ffn_dim "
    "n_inner ffn_hidden"
)
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
    pattern = placed_experts(document, layers)
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
    if document.flag("use_mixed_mlp_moe") is False and count:
        notes.append(f"use_mixed_mlp_moe False: the {count} shared experts are not there")
        count = 0
    if count is None:
        count = 1 if width else 0
    return {"shared_experts": count, "shared_ffn": width if count else 0}
