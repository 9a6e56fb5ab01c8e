"""Question: what does a layer keep from its forward pass for its backward pass?

Under rematerialisation its input, and the activations that the policy names (`moeprof.specs.remat`)
once per layer: AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy. Routed tensors are
named like those of a dense feed-forward, so a policy that keeps ``mlpwo`` keeps whole dispatch
buffers, worst case and all.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.projector.accounts.extent import Extent
from moeprof.projector.accounts.live import Live, item_bytes, live_row
from moeprof.projector.breakdown import Row
from moeprof.projector.rows import product_row
from moeprof.projector.setting import Amount, Setting
from moeprof.specs.stages import StageLayers

_SOURCE = "AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy"
_ATTENTION_NAMES: Mapping[str, str] = {
    "query_proj": "q",
    "key_proj": "k",
    "value_proj": "v",
    "out_proj": "d",
    "context": "o",
}
_FEEDFORWARD_NAMES: Mapping[str, tuple[str, str, str]] = {
    # routed, shared, dense
    "mlpwi_0": ("f", "f_s", "f_d"),
    "mlpwi_1": ("f", "f_s", "f_d"),
    "mlpwo": ("d", "d", "d"),
}


def saved_rows(
    setting: Setting,
    extent: Extent,
    stage: StageLayers,
    in_flight: float,
    kept_whole: Mapping[str, tuple[Live, ...]],
) -> tuple[Row, ...]:
    """What all layers of a stage keep, for the microbatches in flight.

    ``kept_whole`` lists what a MoE and a dense layer keep where nothing is recomputed.
    """
    layers = stage.dense_layers + stage.moe_layers + stage.mtp_layers
    recomputed = 0 if setting.plan.remat.text == "none" else layers
    if setting.recomputed_layers is not None:
        recomputed = min(recomputed, setting.recomputed_layers)
    rows = []
    if recomputed:
        share = recomputed / layers
        rows += _inputs(setting, extent, recomputed, in_flight)
        rows += _named(setting, extent, stage, in_flight * share)
    if recomputed < layers:
        share = 1 - recomputed / layers
        counted = (("moe", stage.moe_layers + stage.mtp_layers), ("dense", stage.dense_layers))
        for kind, number in counted:
            times = in_flight * share * number
            rows += [live_row(one, extent, setting, times) for one in kept_whole[kind] if times]
    return tuple(rows)


def _inputs(setting: Setting, extent: Extent, layers: int, in_flight: float) -> list[Row]:
    if "activations" in setting.offload:
        return []
    dimensions: dict[str, Amount | None] = {
        "layers": layers,
        "T": extent["T"],
        "d_t": extent["d_t"],
    }
    return [
        product_row(
            "layer inputs",
            in_flight,
            dimensions,
            item_bytes("", setting),
            kind="activations",
            source=_SOURCE,
            confidence="high",
        )
    ]


def _named(setting: Setting, extent: Extent, stage: StageLayers, times: float) -> list[Row]:
    rows = []
    for name in setting.plan.remat.saved_names:
        for where, layers, shape in _places(setting, name, stage):
            if not layers:
                continue
            live = Live(f"{name}, {where}", shape, 1, _SOURCE, "high", "activations")
            rows.append(live_row(live, extent, setting, times * layers))
    return rows


def _places(setting: Setting, name: str, stage: StageLayers) -> list[tuple[str, int, str]]:
    """Where a name occurs: which part, in how many layers, with which shape."""
    dense, moe = stage.dense_layers, stage.moe_layers + stage.mtp_layers
    if name in _ATTENTION_NAMES:
        return [("all layers", dense + moe, f"T {_ATTENTION_NAMES[name]}")]
    if name not in _FEEDFORWARD_NAMES:
        return []
    routed, shared, plain = _FEEDFORWARD_NAMES[name]
    places = [("dense layers", dense, f"T {plain}")]
    if setting.model.shared_width:
        places.append(("shared experts", moe, f"T {shared}"))
    is_dense = setting.strategy.kind == "dense"
    # The bundled model's capacity path names none of its tensors (model/strategies/dense.py).
    if not (is_dense and setting.world == "bundled"):
        places.append(("routed experts", moe, f"{'n' if is_dense else 'N'} {routed}"))
    return places
