"""Question: which layers have experts, and can a `ModelSpec` say so?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moeprof.errors import SpecError


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
