"""Question: which part of the step does a name stand for?

One table, `PARTS`, serves scopes (elements of an op_name), functions and classes of source frames,
and parameter paths. Words are told apart at underscores and capitals. Names that are one library's
say whose.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from moeprof.analyzers.classify.components import MOE
from moeprof.hlo.program import OF_TORCH
from moeprof.tables.name_rule import op_name_parts

MOE_CONTEXT = "moe"
"""Not a component: the name says "MoE layer", the part must be found otherwise."""

ENGLISH = ""
"""Source of words that anyone may write."""
_MAXTEXT_MOE = "AI-Hypercomputer/maxtext layers/moe.py"
_MEGATRON_MOE = "NVIDIA/Megatron-LM megatron/core/transformer/moe"
_FSDP = "pytorch/pytorch torch/distributed/fsdp/_fully_shard"
_MAXTEXT_RAGGED = "AI-Hypercomputer/maxtext kernels/ragged/ragged_sort.py"


class Named(NamedTuple):
    """Names by a regular expression, what they stand for, and whose they are: a repository's file,
    or `ENGLISH`.
    """

    pattern: str
    component: str
    source: str = ENGLISH


# First match wins. Patterns see words in lower case joined by "_", with "_" at both ends.
PARTS = (
    Named(r"_shared_(experts?|mlp|ffn)_", "shared_expert"),
    Named(r"_(weights?_gather|gather_weights?|(all_)?gather_params?)_", "weight_gather"),
    Named(r"_(grad_sync|grads?_(sync|reduce)|sync_grad\w*|psum_grads?)_", "gradient_reduce"),
    Named(r"_fsdp_all_gather_", "weight_gather", _FSDP),
    Named(r"_fsdp_post_backward_reduce_", "gradient_reduce", _FSDP),
    Named(r"_ddp_reducer_", "gradient_reduce", "pytorch/pytorch torch/csrc/distributed/c10d"),
    Named(r"_un_?permutation_", "unpermute", _MEGATRON_MOE),
    Named(r"_token_permutation_", "permute", _MEGATRON_MOE),
    Named(r"_(grouped|sequential)_mlp_", "grouped_gemm", _MEGATRON_MOE),
    Named(r"_block_sparse_top_\d+_mlp_", "grouped_gemm", "huggingface/transformers mixtral"),
    Named(r"_(un_?permute|un_?sort|inverse_permute)", "unpermute"),
    Named(r"_weight_sum", "unpermute", _MAXTEXT_MOE),
    Named(r"_ragged_unsort", "unpermute", _MAXTEXT_RAGGED),
    Named(r"_(combine|un_?dispatch)_", "combine"),
    Named(r"_dispatch_", "dispatch"),
    Named(r"_(permute|sort_tokens)_", "permute"),
    Named(r"_sort_activations_", "permute", _MAXTEXT_MOE),
    Named(r"_ragged_sort_", "permute", _MAXTEXT_RAGGED),
    Named(r"_grouped_(gemm|matmul|dot)_", "grouped_gemm"),
    Named(r"_(t?gmm|megablox)_", "grouped_gemm", "jax-ml/jax pallas/ops/tpu/megablox"),
    Named(r"_ragged_dot_", "grouped_gemm", "jax-ml/jax _src/lax/lax.py"),
    Named(r"_(router|routing|route|gating|top_?k|gate)_(?!proj|up|act|kernel)", "router"),
    Named(r"_experts?_(parallel|moe)_", MOE_CONTEXT),
    Named(r"_experts?_", "grouped_gemm"),
    Named(r"_moe_|_mo_e_|_moe\w*_|_mixture_of_|_sparse_(mlp|ffn)_", MOE_CONTEXT),
    Named(r"_switch_(mlp|ffn|layer)_", MOE_CONTEXT),
    Named(r"_l_2_norm_pytree_", "optimizer", "AI-Hypercomputer/maxtext max_utils.py"),
    Named(r"_(global|grads?|gradients?|params?|updates?|tree)_norms?_", "optimizer"),
    Named(r"_(clip_by\w*|clip_grads?|optimi[sz]ers?)_", "optimizer"),
    Named(r"_(adamw?|sgd|adafactor|lion|muon)_", "optimizer"),
    Named(r"_accumulate_grad_", "optimizer", "pytorch/pytorch torch/csrc/autograd/functions"),
    Named(r"_(apply_updates|apply_gradients|update_params)_", "optimizer"),
    Named(r"_(opt_state|weight_decay)_", "optimizer"),
    Named(r"_(norms?|rms|rms_?norm|layer_?norm|ln|ln_?\d|normalizations?)_", "norm"),
    Named(r"_(attn|attentions?|mha|mqa|gqa|mla|sdpa|flash|multi_?head)_", "attention"),
    Named(r"_(rope|rotary|qkv)_", "attention"),
    Named(r"_(only_mlm_head|lm_prediction_head)_", "head", "huggingface/transformers bert"),
    Named(r"_(lm_head|output_head|(?<!_to_)logits|unembed\w*)_|^_head_$", "head"),
    Named(r"_(?<!_to_)logits_dense_", "head", "AI-Hypercomputer/maxtext layers/decoders.py"),
    Named(r"_(embed|embeddings?|embedder|embedding_lookup)_", "embedding"),
    Named(r"_(wte|wpe)_", "embedding", "openai/gpt-2 src/model.py"),
    Named(r"_(loss\w*|cross_entropy|xent|nll)_", "loss"),
    Named(r"_(mlp|ffn|feed_?forward|swiglu|geglu|dense_mlp)_", "dense_mlp"),
)
"""What scopes, functions, classes and parameters are called."""
FILES = {
    r"moe(_layers?)?|mixture_of_experts|experts|router": ENGLISH,
    r"attentions?|norms|normalizations?|embeddings?|optimizers?|losses": ENGLISH,
    r"attentions?_mla": "AI-Hypercomputer/maxtext layers/attention_mla.py",
}
"""Files whose name alone tells what is in them -> whose names these are."""
EXPERT_SCOPES = {
    r"ffn_act|wi(_\d)?|wo": _MAXTEXT_MOE,
    r"w[123]": "mistralai/mistral-inference transformer_layers.py",
}
"""Scopes of a MoE layer in which its experts multiply or apply their activation -> whose."""
_PARTS = tuple((re.compile(named.pattern), named.component) for named in PARTS)
_FILES = re.compile("|".join(FILES))
_EXPERT_SCOPES = re.compile("|".join(EXPERT_SCOPES))
_PRIMITIVES = {
    **dict.fromkeys(("ragged_dot_general", "ragged_dot", "ragged_dot_general_p"), "grouped_gemm"),
    "conv_general_dilated": "convolution",
}
_OF_ATEN = re.compile(r"aten::|\w+Backward\d+$")
_OPS = tuple(
    (re.compile(pattern), component)
    for pattern, component in (
        (r"aten::_?(scaled_)?grouped_mm", "grouped_gemm"),
        (r"aten::\w*convolution\w*", "convolution"),
        (r"aten::_?(native_|fused_)?(layer|rms|group|batch)_norm\w*", "norm"),
        (r"aten::\w*attention\w*", "attention"),
        (r"aten::embedding\w*", "embedding"),
        (r"aten::(cross_entropy_loss|nll_loss)\w*", "loss"),
        (r"aten::(_fused_(adamw?|sgd|adagrad)_?|_amp_\w+)", "optimizer"),
    )
)
"""Ops of PyTorch (native_functions.yaml) that have one use in a model."""
_PARTS_OF_LAYER = MOE | {"shared_expert"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WRAPPERS = re.compile(r"\b(transpose|jvp|vmap|pmap|remat|checkpoint|custom_jvp|custom_vjp)\(")


_WHOLE = re.compile(r"[A-Z]\w*(Model|For[A-Z]\w*|(En|De)coder(Layer)?)(_\d+)?")
"""Classes of whole models and of their layers, which say nothing of a part."""
_FAMILY = re.compile(
    r"^(?=[A-Za-z]*\d|Granite|Jet|HunYuan|Phi)[A-Z]\w*?Moe(?=[A-Z])(?!Moe(Block|Layer|FF))"
)
"""Hugging Face's models are named after their family: ``Qwen3MoeAttention`` is no MoE layer."""
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
    if _WHOLE.fullmatch(name):
        return None
    name = _FAMILY.sub("", name)
    words = "_" + "_".join(word.lower() for word in _WORDS.findall(name)) + "_"
    for pattern, component in _PARTS:
        if pattern.search(words):
            return component
    return None


def is_file_of_part(stem: str) -> bool:
    """Whether a file of this name, without its ending, has one part of a model in it."""
    return _FILES.fullmatch(stem) is not None


def is_expert_scope(name: str) -> bool:
    """Whether experts multiply or apply their activation in a scope, if it is in a MoE layer."""
    return _EXPERT_SCOPES.fullmatch(name) is not None


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
    """Component of the op at the end of an op_name, JAX's or PyTorch's, of those with one use."""
    if op_name.startswith(OF_TORCH):
        ops = [scope for scope in op_name.split("/") if scope.startswith("aten::")]
        known = (part for op in reversed(ops) for named, part in _OPS if named.fullmatch(op))
        return next(known, None)
    found = (
        _PRIMITIVES.get(part.rpartition("/")[2].rstrip(")")) for part in op_name_parts(op_name)
    )
    return next((component for component in found if component), None)


def _path(op_name: str) -> list[str]:
    elements = [element.strip("()") for element in _WRAPPERS.sub("", op_name).split("/")]
    outer = 0
    is_torch = op_name.startswith(OF_TORCH)
    if is_torch:
        outer = 2
    elif elements[0].startswith(("jit(", "pmap(")):
        outer = 2 if elements[1:2] == ["jit(main"] else 1  # older versions add jit(main)
    inner = elements[outer:-1]
    if is_torch:  # ATen's words say what is done, not what for
        inner = [element for element in inner if not _OF_ATEN.match(element)]
    return [element.removeprefix("jit(") for element in inner if element]
