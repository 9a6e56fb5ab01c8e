"""Which layers of a ``config.json`` have experts? Every key that places them is heard.

Keys that each hold back some layers (the first ones, every n-th) are combined; a list of layers
stands for all of them, and where other keys say something else the file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moeprof.errors import SpecError
from moeprof.specs.sources.document import Document
from moeprof.specs.sources.layer_pattern import DensePattern, dense_pattern

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
