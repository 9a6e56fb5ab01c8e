"""Question: which runs with published memory are there, and which setting is each?

Reads data/published_memory.toml; its head says what the metrics are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.setting import Counts, MegatronOptions, Precision, Setting
from moeprof.specs.hardware import HardwareSpec, load_hardware
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

DATA = Path(__file__).parent / "data" / "published_memory.toml"
FP8 = "float8_e4m3fn"
_ALL_FLOAT32 = Precision(
    weights="float32", first_moment="float32", second_moment="float32", gradients="float32"
)
PRECISIONS = {
    "bf16": Precision(),
    "fp32": _ALL_FLOAT32,
    "megatron": MIXED_PRECISION,
    "megatron-bf16-grads": replace(MIXED_PRECISION, gradients="bfloat16"),
    "megatron-bf16-states": replace(
        MIXED_PRECISION, gradients="bfloat16", first_moment="bfloat16", second_moment="bfloat16"
    ),
    "megatron-fp8": replace(MIXED_PRECISION, compute=FP8),
    "fsdp": _ALL_FLOAT32,
    "fsdp-fp8": replace(_ALL_FLOAT32, compute=FP8),
}
_RUN_OPTIONS = (
    "sequence",
    "pdbs",
    "microbatches",
    "schedule",
    "mem_fraction",
    "attention",
    "is_scanned",
    "has_fused_loss",
    "has_distributed_optimizer",
)


@dataclass(frozen=True)
class Family:
    """Rows of one source. ``fitted``: which counts were chosen by its measurements; or none."""

    name: str
    title: str
    platform: str
    source: str
    fitted: str
    rows: tuple[Published, ...]


@dataclass(frozen=True)
class Published:
    """One run: ``values`` as in the file, the family's and its own together."""

    id: str
    values: Mapping[str, Any]

    @property
    def unknown(self) -> str | None:
        """What the source leaves out, so that nothing can be projected; None where all is there."""
        return self.values.get("unknown")

    @property
    def metric(self) -> str | None:
        """What was measured; None for a verdict alone."""
        return self.values.get("metric")

    def setting(self, counts: Counts | None = None) -> Setting:
        """The run as a setting; ``counts`` takes the place of the account's own."""
        values = self.values
        options = dict(values.get("megatron", {}))
        if "offloaded_modules" in options:
            options["offloaded_modules"] = frozenset(options["offloaded_modules"])
        plan = dict(values.get("plan", {}))
        remat = Remat(values.get("remat", plan.pop("remat", "full")))
        plan.setdefault("virtual", values.get("virtual", 1))
        return Setting(
            model=_model(values["model"]),
            plan=ParallelPlan(remat=remat, **plan),
            strategy=parse_strategy(values.get("strategy", "sparse-gmm")),
            hardware=_hardware(values),
            framework=values["world"],
            precision=PRECISIONS[values["precision"]],
            megatron=MegatronOptions(counts=counts or Counts(), **options),
            **{name: values[name] for name in _RUN_OPTIONS if name in values},
        )


def read_published(path: Path = DATA) -> tuple[Family, ...]:
    """All families, in the order of the file."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_family(entry) for entry in document["family"])


def _family(entry: dict[str, Any]) -> Family:
    shared = entry["run"]
    rows = tuple(Published(row["id"], {**shared, **row}) for row in entry["rows"])
    named = (entry[key] for key in ("name", "title", "platform", "source"))
    return Family(*named, fitted=entry.get("fitted", ""), rows=rows)


def _model(given: str | dict[str, Any]) -> ModelSpec:
    if isinstance(given, str):
        return load_preset(given)
    values = dict(given)
    for key, kind in (("gqa", GqaSpec), ("mla", MlaSpec)):
        if key in values:
            values["attention"] = kind(**values.pop(key))
    preset = values.pop("preset", None)
    return ModelSpec(**values) if preset is None else replace(load_preset(preset), **values)


def _hardware(values: Mapping[str, Any]) -> HardwareSpec:
    spec = load_hardware(values["hardware"])
    gib = values.get("hbm_gib")
    return spec if gib is None else replace(spec, hbm_bytes=round(gib * 2**30))
