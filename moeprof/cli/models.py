"""`moeprof models`: the models known by name, how large they are, and where that is from."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from moeprof.reports.parts.terminal import WIDTH, wrapped
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.parameters import active_parameter_count, parameter_count
from moeprof.specs.presets import Preset, load_preset, preset_facts, preset_names
from moeprof.specs.sources import load_model

SCHEMA = "moeprof.models/1"
_ROW = "{:<22} {:>8} {:>8} {:>7} {:>9}  {}"


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.models/1.")
@click.argument("key", required=False)
def command(key: str | None, as_json: bool) -> None:
    """Models that moeprof knows: parameters, experts, attention, and where that is from.

    All of them, or with KEY one with its sources; a name of MaxText is a KEY too, and so is a
    config.json or a MaxText .yml, which is shown as it is read. Parameters are in billions, and
    counted from the widths; active are those of one token, embedding and head whole.

    Example:

        moeprof models deepseek_v3
    """
    found = [_found(key)] if key else [(preset_facts(n), load_preset(n)) for n in preset_names()]
    if as_json:
        document = {"schema": SCHEMA, "models": [_as_json(*pair) for pair in found]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        return
    click.echo(_ROW.format("key", "total", "active", "layers", "experts", "attention"))
    click.echo(_ROW.format("", "billions", "billions", "MoE/all", "× top-k", "heads"))
    for preset, model in found:
        click.echo(_line(preset, model))
    if key:
        for text in _details(*found[0]):
            click.echo("\n".join(wrapped(text, WIDTH, indent="  ")))


def _found(text: str) -> tuple[Preset, ModelSpec]:
    """A model by key, alias or file, with what is known of it; of a file what its reader says."""
    loaded = load_model(text)
    if loaded.origin in preset_names():
        return preset_facts(loaded.origin), loaded.model
    name, note = loaded.model.name or loaded.origin, " ".join(loaded.notes)
    facts = Preset(loaded.origin, (), name, (), None, None, None, None, loaded.origin, note)
    return facts, loaded.model


def _line(preset: Preset, model: ModelSpec) -> str:
    return _ROW.format(
        preset.key,
        _billions(parameter_count(model)),
        _billions(active_parameter_count(model)),
        f"{model.moe_layers}/{model.layers}",
        f"{model.experts} × {model.top_k}" if model.experts else "-",
        _attention(model),
    ).rstrip()


def _attention(model: ModelSpec) -> str:
    if isinstance(model.attention, MlaSpec):
        return f"MLA {model.heads}"
    kind = "MHA" if model.heads == model.attention.kv_heads else "GQA"
    linear = f", {model.linear_layers} linear" if model.linear_layers else ""
    return f"{kind} {model.heads}/{model.attention.kv_heads}{linear}"


def _billions(count: int) -> str:
    return f"{count / 1e9:.4g}" if count >= 1e7 else f"{count / 1e9:.2g}"


def _details(preset: Preset, model: ModelSpec) -> list[str]:
    published = [
        f"{what} {figure}"
        for what, figure in (
            ("total", preset.total_published_billions),
            ("active", preset.active_published_billions),
        )
        if figure
    ]
    rows = {
        "": preset.name,
        "also": ", ".join(preset.aliases),
        "widths": (
            f"hidden {model.hidden}, expert {model.moe_ffn}, shared {model.shared_width}, "
            f"dense {model.dense_ffn}, vocab {model.vocab}"
        ),
        "published": f"{', '.join(published)} (billions)" if published else "",
        "source": preset.source,
        "note": preset.note,
    }
    return [f"{what}: {text}" if what else text for what, text in rows.items() if text]


def _as_json(preset: Preset, model: ModelSpec) -> dict[str, Any]:
    return {
        **dataclasses.asdict(preset),
        "parameters": parameter_count(model),
        "active_parameters": active_parameter_count(model),
        "moe_layers": model.moe_layers,
        "model": dataclasses.asdict(model),
    }
