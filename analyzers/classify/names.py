"""Question: which part of the step does a name stand for?

One table serves scopes (elements of an op_name), functions and classes of source frames, and
parameter paths. Words are told apart at underscores and capitals.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from moeprof.analyzers.classify.components import MOE
from moeprof.tables.op_names import op_name_parts

MOE_CONTEXT = "moe"
"""Not a component: the name says "MoE layer", the part must be found otherwise."""

# First match wins. Patterns see words in lower case joined by "_", with "_" at both ends.
_PATTERNS = tuple(
    (re.compile(pattern), component)
    for pattern, component in (
        (r"_shared_(experts?|mlp|ffn)_", "shared_expert"),
        (r"_(weights?_gather|gather_weights?|(all_)?gather_params?)_", "weight_gather"),
        (r"_(grad_sync|grads?_(sync|reduce)|sync_grad\w*|psum_grads?)_", "gradient_reduce"),
        (r"_(un_?permute|un_?sort|weight_sum|inverse_permute|ragged_unsort)", "unpermute"),
        (r"_(combine|un_?dispatch)_", "combine"),
        (r"_dispatch_", "dispatch"),
        (r"_(permute|sort_activations|sort_tokens|ragged_sort)_", "permute"),
        (r"_(grouped_(gemm|matmul|dot)|t?gmm|megablox|ragged_dot)_", "grouped_gemm"),
        (r"_(router|routing|route|gating|top_?k|gate)_(?!proj|up|act|kernel)", "router"),
        (r"_experts?_(parallel|moe)_", MOE_CONTEXT),
        (r"_experts?_", "grouped_gemm"),
        (
            r"_moe_|_mo_e_|_moe\w*_|_mixture_of_|_sparse_(mlp|ffn)_|_switch_(mlp|ffn|layer)_",
            MOE_CONTEXT,
        ),
        (
            r"_l_2_norm_pytree_|_(global|grads?|gradients?|params?|updates?|tree)_norms?_"
            r"|_(clip_by\w*|clip_grads?|optimi[sz]ers?|adamw?|sgd|adafactor|lion|muon)_",
            "optimizer",
        ),
        (r"_(apply_updates|apply_gradients|update_params|opt_state|weight_decay)_", "optimizer"),
        (r"_(norms?|rms|rms_?norm|layer_?norm|ln|ln_?\d|normalizations?)_", "norm"),
        (
            r"_(attn|attentions?|mha|mqa|gqa|mla|sdpa|flash|multi_?head|rope|rotary|qkv)_",
            "attention",
        ),
        (r"_(lm_head|output_head|(?<!_to_)logits(_dense)?|unembed\w*)_|^_head_$", "head"),
        (r"_(embed|embeddings?|embedder|wte|wpe|embedding_lookup)_", "embedding"),
        (r"_(loss\w*|cross_entropy|xent|nll)_", "loss"),
        (r"_(mlp|ffn|feed_?forward|swiglu|geglu|dense_mlp)_", "dense_mlp"),
    )
)
_PRIMITIVES = {
    **dict.fromkeys(("ragged_dot_general", "ragged_dot", "ragged_dot_general_p"), "grouped_gemm"),
    "conv_general_dilated": "convolution",
}
_PARTS_OF_LAYER = MOE | {"shared_expert"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WRAPPERS = re.compile(r"\b(transpose|jvp|vmap|pmap|remat|checkpoint|custom_jvp|custom_vjp)\(")


_VAGUE = re.compile(r"_(gate|combine|dispatch|permute|gmm)_")
"""Words that stand for parts of a MoE layer in one, and for something else outside of it."""


@functools.lru_cache(maxsize=1 << 16)
def is_vague(name: str) -> bool:
    """Whether a name may stand for something else: a gate of a feed-forward layer, say."""
    return _VAGUE.search("_" + "_".join(w.lower() for w in _WORDS.findall(name)) + "_") is not None


@functools.lru_cache(maxsize=1 << 16)  # programs name few things, many times
def component_of(name: str) -> str | None:
    """Component, or `MOE_CONTEXT`, that an identifier stands for; None for any other name.

    ``GroupedQueryAttention`` is attention, ``moe_ffn`` is MoE context, ``gate_proj`` is nothing.
    """
    if "->" in name:
        return None  # an einsum formula: its letters are no words
    words = "_" + "_".join(word.lower() for word in _WORDS.findall(name)) + "_"
    for pattern, component in _PATTERNS:
        if pattern.search(words):
            return component
    return None


def innermost(components: Iterable[str | None], *, in_moe: bool = False) -> str | None:
    """The first component, innermost first; `MOE_CONTEXT` where nothing else is said.

    Once the MoE layer is named (or `in_moe` says so), only its own parts count from further out:
    the layer often stands inside a block that is called "mlp" or "attention".
    """
    for component in components:
        if component == MOE_CONTEXT:
            in_moe = True
        elif component is not None and (not in_moe or component in _PARTS_OF_LAYER):
            return component
    return MOE_CONTEXT if in_moe else None


def scopes(op_name: str) -> list[list[str]]:
    """Scope path of an op_name, outermost first; one path per merged part.

    The program's own name and the primitive at the end are left out.
    Derivative wrappers are taken off: ``transpose(jvp(moe))/dispatch`` gives moe, dispatch.
    """
    return [_path(part) for part in op_name_parts(op_name)]


def component_of_primitive(op_name: str) -> str | None:
    """Component of the JAX primitive at the end of an op_name, of the few that have one use."""
    found = (
        _PRIMITIVES.get(part.rpartition("/")[2].rstrip(")")) for part in op_name_parts(op_name)
    )
    return next((component for component in found if component), None)


def _path(op_name: str) -> list[str]:
    elements = [element.strip("()") for element in _WRAPPERS.sub("", op_name).split("/")]
    outer = 0
    if elements[0].startswith(("jit(", "pmap(")):
        outer = 2 if elements[1:2] == ["jit(main"] else 1  # older versions add jit(main)
    inner = elements[outer:-1]
    return [element.removeprefix("jit(") for element in inner if element]
