"""Question: which models are known by name? The rows of moeprof/specs/models.csv.

A row holds what changes sizes and costs. What does not (rotary base, scale of routing weights,
epsilon of norms) stays at the default of `ModelSpec`.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from moeprof.errors import SelectionError, SpecError
from moeprof.specs.model import GqaSpec, LinearSpec, MlaSpec, ModelSpec

_COUNTS = (
    "layers",
    "dense_layers",
    "hidden",
    "vocab",
    "heads",
    "experts",
    "top_k",
    "moe_ffn",
    "shared_experts",
    "shared_ffn",
    "dense_ffn",
    "mtp_layers",
    "linear_layers",
)


@dataclass(frozen=True)
class Preset:
    """A named model: billions of parameters as published and as counted, and where that is from.

    ``aliases`` are other names, MaxText's among them. ``attentions`` are the kinds (mla, gqa) that
    it can have, its own first. A published figure is the text that its source prints; None where
    there is none. Computed figures were counted from the widths, apart from `parameters`.
    """

    key: str
    aliases: tuple[str, ...]
    name: str
    attentions: tuple[str, ...]
    total_published_billions: str | None
    active_published_billions: str | None
    total_computed_billions: float | None
    active_computed_billions: float | None
    source: str
    note: str


def preset_names() -> tuple[str, ...]:
    """Keys that `load_preset` knows, in the order of the table; it knows their aliases too."""
    return tuple(_rows())


def load_preset(name: str, attention: str | None = None) -> ModelSpec:
    """A model by key or alias; ``attention`` (mla, gqa) picks one where the preset offers several.

    Raises:
        SelectionError: no such preset.
        SpecError: it has no such attention.
    """
    row = _row(name)
    offered = row["attention"].split()
    kind = attention or offered[0]
    if kind not in offered:
        raise SpecError(
            f"preset {name} attention: expected one of {', '.join(offered)}, found {kind!r}."
        )
    return _model(row, kind)


def preset_facts(name: str) -> Preset:
    """What is published about a preset, by key or alias.

    Raises:
        SelectionError: no such preset.
    """
    row = _row(name)
    return Preset(
        key=row["key"],
        aliases=tuple(row["aliases"].split()),
        name=row["name"],
        attentions=tuple(row["attention"].split()),
        total_published_billions=row["total_published_B"] or None,
        active_published_billions=row["active_published_B"] or None,
        total_computed_billions=_number(row["total_computed_B"]),
        active_computed_billions=_number(row["active_computed_B"]),
        source=row["source"],
        note=row["note"],
    )


def preset_key(name: str) -> str | None:
    """The key that a key or an alias stands for; case and ``-`` or ``_`` do not matter."""
    wanted = _plain(name)
    for key, row in _rows().items():
        if wanted in map(_plain, (key, *row["aliases"].split())):
            return key
    return None


def _row(name: str) -> dict[str, str]:
    key = preset_key(name)
    if key is None:
        known = ", ".join(preset_names())
        raise SelectionError(f"preset: expected one of {known}, found {name!r}.")
    return _rows()[key]


@functools.cache
def _rows() -> dict[str, dict[str, str]]:
    text = files("moeprof.specs").joinpath("models.csv").read_text(encoding="utf-8")
    return {row["key"]: row for row in csv.DictReader(text.splitlines())}


def _model(row: dict[str, str], attention: str) -> ModelSpec:
    counts: dict[str, Any] = {field: int(row[field] or 0) for field in _COUNTS}
    return ModelSpec(
        attention=_attention(row, attention),
        linear=_linear(row),
        name=row["name"],
        compute_dtype=row["dtype"],
        weight_dtype=row["dtype"],
        **counts,
        **_traits(row["traits"]),
    )


def _attention(row: dict[str, str], kind: str) -> MlaSpec | GqaSpec:
    if kind == "gqa":
        return GqaSpec(int(row["kv_heads"]), int(row["head_dim"]))
    fields = ("q_lora_rank", "kv_lora_rank", "nope_dim", "rope_dim", "value_dim")
    return MlaSpec(*(int(row[field]) for field in fields))


def _linear(row: dict[str, str]) -> LinearSpec | None:
    if not row["linear_kind"]:
        return None
    return LinearSpec(
        key_heads=int(row["linear_key_heads"]),
        key_dim=int(row["linear_key_dim"]),
        value_heads=int(row["linear_value_heads"]),
        value_dim=int(row["linear_value_dim"]),
        conv_width=int(row["conv_width"]),
        kind=row["linear_kind"],
    )


def _traits(text: str) -> dict[str, Any]:
    """``has_sinks qk_norm=head`` as fields; a word without ``=`` is true."""
    pairs = (word.partition("=") for word in text.split())
    return {name: value if equals else True for name, equals, value in pairs}


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _number(text: str) -> float | None:
    return float(text) if text else None
