"""Question: how do the keys of a ``config.json`` describe experts, their layers, and dense layers?

Every key that places experts is heard. Keys that each hold back some layers (the first ones, every
n-th) are combined; a list of layers stands for all of them, and where other keys say something else
the file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from moeprof.errors import SpecError
from moeprof.specs.sources.document import Document


class DensePattern(NamedTuple):
    """As the fields of a `ModelSpec`."""

    dense_layers: int
    is_interleaved: bool


def dense_pattern(path: str, layers: int, with_experts: Sequence[int]) -> DensePattern:
    """How layers without experts lie: first, or every n-th with experts at the end of each n.

    Raises:
        SpecError: they lie in another way; ``path`` is in the message.
    """
    dense = layers - len(with_experts)
    if list(with_experts) == list(range(dense, layers)):
        return DensePattern(dense, False)
    every = layers // len(with_experts) if with_experts else 0
    if every and list(with_experts) == list(range(every - 1, layers, every)):
        return DensePattern(dense, True)
    first = ", ".join(map(str, with_experts[:8]))
    raise SpecError(
        f"{path}: expected dense layers first, or experts in every n-th layer, found experts in "
        f"{len(with_experts)} of {layers} layers: {first}{', …' if len(with_experts) > 8 else ''}. "
        "Such a model cannot be projected yet."
    )


_FIRST = (
    "first_k_dense_replace first_num_dense_layers first_k_dense first_k_dense_layers "
    "num_dense_layers n_dense_layers num_dense_first_layers moe_layer_num_skipped"
)
"""Layers at the start without experts."""
_DENSE_NAMED = "mlp_only_layers dense_layers dense_layer_indices dense_layer_ids"
"""Indices of layers without experts; a number counts the first ones."""
_EXPERTS_NAMED = "moe_layers moe_layer_list moe_layer_indices moe_layer_ids"
"""Indices of layers with experts, or a flag for each layer."""
_KINDS = "mlp_layer_types"
_FREQUENCY = "moe_layer_freq"
_START, _END = "moe_layer_start_index", "moe_layer_end_index"
_UNSET = -1
"""ERNIE's word for: from the first layer on, to the last."""
_PERIODS: dict[str, Callable[[int, int], bool]] = {
    "interleave_moe_layer_step": lambda layer, every: (layer + 1) % every == 0,
    "decoder_sparse_step": lambda layer, every: (layer + 1) % every == 0,
    "moe_layer_interval": lambda layer, every: (layer + 1) % every == 0,
    "moe_layer_frequency": lambda layer, every: (layer + 1) % every == 0,
    "moe_every_n_layers": lambda layer, every: layer % every == every - 1,
}
"""Which layers a number n gives experts to."""


def placed_experts(document: Document, layers: int) -> DensePattern:
    """How the layers without experts lie among `layers`.

    Raises:
        SpecError: a key is damaged, keys contradict each other, or the layers lie in no pattern
            that a model can say.
    """
    said = _listed(document, layers)
    keys, left = _not_held_back(document, layers)
    if len(left) < layers or not said:
        said[keys] = left
    (first, chosen), *others = said.items()
    for key, differently in others:
        if differently != chosen:
            raise SpecError(
                f"{document.path}: expected keys that agree on the layers with experts, found "
                f"{first} ({_few(chosen)}) and {key} ({_few(differently)}). Remove one."
            )
    if not chosen or chosen[0] < 0 or chosen[-1] >= layers:
        raise SpecError(
            f"{document.path}: expected experts in some of its layers 0 to {layers - 1}, found "
            f"{', '.join(map(str, chosen[:4])) or 'none'}. Correct the keys that place them."
        )
    return dense_pattern(document.path, layers, chosen)


def _listed(document: Document, layers: int) -> dict[str, list[int]]:
    """Per key that lists all layers, those with experts."""
    found = {}
    kinds = document.list_of(_KINDS, str, layers)
    if kinds is not None:
        strange = sorted({str(kind) for kind in kinds} - {"dense", "sparse", "moe"})
        if strange:
            raise document.wrong(_KINDS, "dense or sparse (moe) for each layer", strange)
        found[_KINDS] = [i for i, kind in enumerate(kinds) if kind != "dense"]
    for key in _EXPERTS_NAMED.split():
        if document.found(key):
            found[key] = _indices(document, key, layers)
    frequency = document.found(_FREQUENCY)
    if frequency is not None and isinstance(frequency[1], list):
        flags = _integers(document, _FREQUENCY, layers)
        if not set(flags) <= {0, 1}:
            raise document.wrong(_FREQUENCY, f"0 or 1 for each of {layers} layers", flags)
        found[_FREQUENCY] = [i for i, flag in enumerate(flags) if flag]
    return found


def _integers(document: Document, key: str, length: int | None = None) -> list[int]:
    return [i for i in document.list_of(key, int, length) or [] if isinstance(i, int)]


def _indices(document: Document, key: str, layers: int) -> list[int]:
    """Indices of layers, ascending; a list of as many flags as layers counts as those set."""
    value = (document.found(key) or ("", None))[1]
    if isinstance(value, str):  # "3,4,5", as some files have it
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(part.isdigit() for part in parts):
            raise document.wrong(key, "indices of layers", value)
        named = [int(part) for part in parts]
    else:
        named = _integers(document, key)
    if len(set(named)) < len(named):
        if len(named) == layers and set(named) <= {0, 1}:
            return [i for i, flag in enumerate(named) if flag]
        raise document.wrong(key, f"each layer once, or 0 or 1 for each of {layers} layers", value)
    if any(not 0 <= index < layers for index in named):
        raise document.wrong(key, f"layers from 0 to {layers - 1}", value)
    return sorted(named)


def _not_held_back(document: Document, layers: int) -> tuple[str, list[int]]:
    """The keys that hold back layers from having experts, and the layers that none does."""
    keys: list[str] = []
    chosen: Iterable[int] = range(layers)
    first = 0
    for key in _FIRST.split():
        if document.found(key):
            first = max(first, document.count(key) or 0)
            keys.append(key)
    for key in _DENSE_NAMED.split():
        hit = document.found(key)
        if hit is None:
            continue
        keys.append(key)
        if isinstance(hit[1], list):
            dense = _indices(document, key, layers)
            chosen = [i for i in chosen if i not in dense]
        else:
            first = max(first, document.count(key) or 0)
    for key, has_experts in _PERIODS.items():
        every = document.count(key, 1)
        if every is not None:
            keys.append(key)
            chosen = [i for i in chosen if has_experts(i, every)]
    period = document.count("expert_layer_period", 1)
    offset = document.count("expert_layer_offset") or 0
    if period is not None:
        keys.append("expert_layer_period")
        chosen = [i for i in chosen if i % period == offset]
    frequency = document.found(_FREQUENCY)
    if frequency is not None and not isinstance(frequency[1], list):
        every = document.count(_FREQUENCY, 1) or 1
        keys.append(_FREQUENCY)
        chosen = [i for i in chosen if i % every == 0]
    start, end = _bound(document, _START, layers), _bound(document, _END, layers)
    keys += [key for key, bound in ((_START, start), (_END, end)) if bound is not None]
    first = max(first, start if start is not None and start != _UNSET else 0)
    last = layers - 1 if end is None or end == _UNSET else end
    return ", ".join(keys), [i for i in chosen if first <= i <= last]


def _bound(document: Document, key: str, layers: int) -> int | None:
    """The first or last layer with experts, -1 for the outermost; None where it is not given.

    A list has one for each kind of experts, of texts and of images, which must be the same.
    """
    hit = document.found(key)
    if hit is None:
        return None
    given = hit[1] if isinstance(hit[1], list) else [hit[1]]
    bounds = {one for one in given if type(one) is int and _UNSET <= one < layers}
    if len(bounds) != 1 or len(bounds) < len({repr(one) for one in given}):
        raise document.wrong(key, f"-1, or a layer from 0 to {layers - 1}", hit[1])
    return bounds.pop()


def _few(indices: list[int]) -> str:
    more = ", …" if len(indices) > 4 else ""
    return f"layers {', '.join(map(str, indices[:4])) or 'none'}{more}"


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
