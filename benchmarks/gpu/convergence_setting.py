"""Question: which model, text and routers do the strategies train in `convergence.py`?

A small decoder of 64 experts of which a token takes 4, on sequences of 128 bytes: an expert's fair
share of a sequence, the group that shares its capacity, is 8 tokens. The learning rate rises over
the first steps and falls to 0 along a cosine. With longer sequences and a constant rate it is
chance when a run learns to copy from its context, and rounding alone sets two runs far apart.

How much a strategy drops depends on how even the router is, so two routers are trained:

- ``balanced`` moves each expert's bias by 1e-3 a step against its load, as the DeepSeek-V3
  Technical Report, section 4.2, does; what is uneven then is the text of each sequence, and the
  first steps;
- ``unbalanced`` has no such rule (and no auxiliary loss): the router stays as uneven as it grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

STRATEGIES = ("dense-cf1.25", "dense-cf2", "dense-cf4", "sparse-gmm", "sparse-gmm-deepep")
"""From the one that drops most; the last two drop nothing."""
BIAS_SPEED = {"balanced": 1e-3, "unbalanced": 0.0}
HELD_OUT = 1 / 20
"""The share of the text, at its end, that no run trains on."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One size of the comparison: the model and the training."""

    layers: int = 3
    dense_layers: int = 1
    hidden: int = 512
    heads: int = 8
    head_dim: int = 64
    experts: int = 64
    top_k: int = 4
    moe_ffn: int = 256
    dense_ffn: int = 1024
    compute_dtype: str = "bfloat16"
    sequences: int = 16
    sequence: int = 128
    steps: int = 2000
    learning_rate: float = 1e-3
    warm_up: int = 100
    seeds: int = 6


SMOKE = Setting(
    layers=2,
    hidden=32,
    heads=2,
    head_dim=16,
    experts=8,
    top_k=2,
    moe_ffn=16,
    dense_ffn=32,
    compute_dtype="float32",
    sequences=4,
    sequence=32,
    steps=3,
    warm_up=1,
    seeds=2,
)


def changed(setting: Setting, changes: list[str]) -> Setting:
    """The setting with ``FIELD=VALUE`` texts applied."""
    values = {}
    for change in changes:
        name, value = change.split("=", 1)
        values[name] = type(getattr(setting, name))(value)
    return dataclasses.replace(setting, **values)


def model_of(setting: Setting) -> Any:
    """The model: float32 weights, bytes as vocabulary."""
    from moeprof.model.data import VOCAB
    from moeprof.specs.model import GqaSpec, ModelSpec

    return ModelSpec(
        layers=setting.layers,
        dense_layers=setting.dense_layers,
        hidden=setting.hidden,
        heads=setting.heads,
        attention=GqaSpec(kv_heads=setting.heads, head_dim=setting.head_dim),
        experts=setting.experts,
        top_k=setting.top_k,
        moe_ffn=setting.moe_ffn,
        dense_ffn=setting.dense_ffn,
        vocab=VOCAB,
        compute_dtype=setting.compute_dtype,
        weight_dtype="float32",
    )


def learning_rate_of(setting: Setting) -> Any:
    """The schedule: up to ``learning_rate`` in ``warm_up`` steps, then a cosine to 0."""
    import optax

    return optax.warmup_cosine_decay_schedule(
        0.0, setting.learning_rate, setting.warm_up, setting.steps
    )


def windows(text: Any, sequences: int, length: int, seed: int) -> Iterator[Any]:
    """Endless batches int32 [sequences, length + 1] at random places of ``text``."""
    import numpy as np

    random = np.random.default_rng(seed)
    window = np.arange(length + 1)
    while True:
        start = random.integers(0, len(text) - length, sequences)
        yield text[start[:, None] + window].astype(np.int32)


def whole(text: Any, sequences: int, length: int, limit: int | None = None) -> Iterator[Any]:
    """Batches int32 [sequences, length + 1] that predict each byte of ``text`` once.

    What does not fill a batch at the end is left out; ``limit`` bounds the batches.
    """
    import numpy as np

    count = (len(text) - 1) // (sequences * length)
    window = np.arange(length + 1)
    for index in range(count if limit is None else min(count, limit)):
        start = (index * sequences + np.arange(sequences)) * length
        yield text[start[:, None] + window].astype(np.int32)
