"""Question: which models are known by name? Each is a file in moeprof/specs/models."""

from __future__ import annotations

import importlib.resources
import tomllib

from moeprof.errors import SpecError
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec

_ATTENTION = {"mla": MlaSpec, "gqa": GqaSpec}


def preset_names() -> tuple[str, ...]:
    """Names that `load_preset` knows."""
    folder = importlib.resources.files("moeprof.specs") / "models"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()))


def load_preset(name: str, attention: str | None = None) -> ModelSpec:
    """A model by name; ``attention`` (mla, gqa) picks one where the preset offers several.

    Raises:
        SpecError: no such preset, or it has no such attention.
    """
    if name not in preset_names():
        raise SpecError(f"preset: expected one of {', '.join(preset_names())}, found {name!r}.")
    folder = importlib.resources.files("moeprof.specs") / "models"
    values = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    offered = values.pop("attention")
    kind = attention or next(iter(offered))
    if kind not in offered:
        raise SpecError(
            f"preset {name} attention: expected one of {', '.join(offered)}, found {kind!r}."
        )
    return ModelSpec(attention=_ATTENTION[kind](**offered[kind]), **values)
