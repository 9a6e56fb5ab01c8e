"""Question: what does a layer keep from its forward pass for its backward pass?

Under rematerialisation its input, and the activations that the policy names (`moeprof.specs.remat`)
once per layer: AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy. Routed tensors are
named like those of a dense feed-forward, so a policy that keeps ``mlpwo`` keeps whole dispatch
buffers, worst case and all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from moeprof.projector.accounts.extent import Extent
from moeprof.projector.accounts.live import Live, item_bytes, live_row
from moeprof.projector.breakdown import Row
from moeprof.projector.rows import product_row
from moeprof.projector.setting import Amount, Setting
from moeprof.specs.stages import StageLayers


class Account(Protocol):
    """What a program's account tells of its layers."""

    def kept_whole(self, setting: Setting) -> Mapping[str, tuple[Live, ...]]:
        """What a MoE and a dense layer keep where nothing is recomputed."""

    def kept_unrolled(self, setting: Setting) -> Mapping[str, tuple[Live, ...]]:
        """What is kept of a stack of one layer, where that is compiled without a loop.

        The compiler then finds recomputation to be what it has computed already, and keeps it.
        Empty where it may not.
        """


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
    account: Account,
) -> tuple[Row, ...]:
    """What all layers of a stage keep, for the microbatches in flight."""
    layers = {"moe": stage.moe_layers + stage.mtp_layers, "dense": stage.dense_layers}
    recomputed = _recomputed(setting, layers, account)
    rows = []
    if any(recomputed.values()):
        rows += _inputs(setting, extent, sum(recomputed.values()), in_flight)
        rows += _named(setting, extent, recomputed, in_flight)
    whole, unrolled = account.kept_whole(setting), account.kept_unrolled(setting)
    for kind, number in layers.items():
        times = in_flight * (number - recomputed[kind])
        kept = unrolled[kind] if number == 1 and kind in unrolled else whole[kind]
        rows += [live_row(one, extent, setting, times) for one in kept if times]
    return tuple(rows)


def _recomputed(
    setting: Setting, layers: Mapping[str, int], account: Account
) -> dict[str, int | float]:
    """Layers of each kind that are recomputed; a limit on their number is shared evenly."""
    if setting.plan.remat.text == "none":
        return dict.fromkeys(layers, 0)
    unrolled = account.kept_unrolled(setting)
    numbers: dict[str, int | float] = {
        kind: 0 if number == 1 and kind in unrolled else number for kind, number in layers.items()
    }
    total, limit = sum(layers.values()), setting.recomputed_layers
    if limit is None or limit >= total:
        return numbers
    return {kind: number * limit / total for kind, number in numbers.items()}


def _inputs(setting: Setting, extent: Extent, layers: float, in_flight: float) -> list[Row]:
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


def _named(
    setting: Setting, extent: Extent, layers: Mapping[str, float], in_flight: float
) -> list[Row]:
    rows = []
    for name in setting.plan.remat.saved_names:
        for where, number, shape in _places(setting, name, layers):
            live = Live(f"{name}, {where}", shape, 1, _SOURCE, "high", "activations")
            if number:
                rows.append(live_row(live, extent, setting, in_flight * number))
    return rows


def _places(
    setting: Setting, name: str, layers: Mapping[str, float]
) -> list[tuple[str, float, str]]:
    """Where a name occurs: which part, in how many layers, with which shape."""
    dense, moe = layers["dense"], layers["moe"]
    if name in _ATTENTION_NAMES:
        return [("all layers", dense + moe, f"T {_ATTENTION_NAMES[name]}")]
    if name not in _FEEDFORWARD_NAMES:
        return []
    routed, shared, plain = _FEEDFORWARD_NAMES[name]
    places = []
    if name != "mlpwo":
        # What a dense feed-forward adds to the residual is no operand of any gradient.
        places.append(("dense layers", dense, f"T {plain}"))
        if setting.model.shared_width:
            places.append(("shared experts", moe, f"T {shared}"))
    is_dense = setting.strategy.kind == "dense"
    if not _is_unused(setting, name):
        places.append(("routed experts", moe, f"{'n' if is_dense else 'N'} {routed}"))
    return places


def _is_unused(setting: Setting, name: str) -> bool:
    """Whether the bundled model keeps nothing of its routed experts under a name.

    Its capacity path names none of its tensors (model/strategies/dense.py). With DeepEP routing
    weights multiply before the down projection, so no gradient needs what it returns.
    """
    kind = setting.strategy.kind
    is_read = name != "mlpwo" or kind != "sparse-gmm-deepep"
    return setting.world == "bundled" and (kind == "dense" or not is_read)
