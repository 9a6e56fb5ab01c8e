"""Question: which colour and place has a part of the step, the same in every figure?

The order follows a token through the layer. Hues are told apart by people with red-green or blue
blindness, best where two parts of a bar touch (tests simulate that); labels carry the meaning in
any case.
Base hues: Okabe and Ito, "Color Universal Design", 2008, and Paul Tol, "Colour Schemes", 2021.
"""

from __future__ import annotations

from collections.abc import Iterable

COLOURS = {
    "embedding": "#e3a9c9",
    "attention": "#009e73",
    "norm": "#b5d9c3",
    "router": "#c9a800",
    "permute": "#7cc7ef",
    "dispatch": "#0a6fb5",
    "grouped_gemm": "#dd6a1f",
    "expert_elementwise": "#f3b58a",
    "combine": "#3c4fa8",
    "unpermute": "#9ca6eb",
    "moe_other": "#5d6f9c",
    "shared_expert": "#eba941",
    "dense_mlp": "#a8641c",
    "convolution": "#7d7339",
    "head": "#cf76b3",
    "loss": "#8f3f72",
    "optimizer": "#b9a0d3",
    "weight_gather": "#4cb88c",
    "gradient_reduce": "#2f8688",
    "collectives": "#3a9eb5",
    "copies": "#8c8c3e",
    "other": "#6c7870",
    "loop_gaps": "#c4b7a6",
    "unattributed": "#a9afb5",
    "idle": "#d9dcdf",
}
HATCHED = ("loop_gaps", "unattributed", "idle")
"""Parts that are drawn with stripes: they are not work that a component did."""

STEP_PARTS = {
    "compute": ("#0a6fb5", ""),
    "exposed_communication": ("#dd6a1f", ""),
    "exposed_copy": ("#9db4ea", "x"),
    "idle": ("#a3a9af", "."),
    "between_idle": ("#d3dae1", "/"),
    "between_other": ("#8a6fb0", "\\"),
}
"""Colour and pattern of the times that add up to the step, from its start to the next one's."""

MIXED = "#c3ccd6"
"""What no component has most of: a scope or a line that holds many."""

HELD = {
    "weights": ("#7f8b98", ""),
    "optimizer state": ("#a9b4bf", ""),
    "inputs": ("#d3dae1", ""),
    "heaps of other memory spaces": ("#8f9aa6", "\\"),
}
"""Greys, with a pattern, of memory that stays for the whole program: no part of a step makes it."""
HELD_BESIDE = ("#c3ccd6", "/")
"""Of what else stays."""

CONTENTS = {
    "gradients": (COLOURS["gradient_reduce"], ""),
    "gathered weights": (COLOURS["weight_gather"], ""),
    "receive buffers": (COLOURS["dispatch"], "."),
    "dense fallback of ragged dot": (COLOURS["grouped_gemm"], "x"),
    "loop state": (COLOURS["loop_gaps"], ""),
    "logits": (COLOURS["head"], ""),
}
"""Colour and pattern of tensors that are one thing, whichever part of the step wrote them."""
SAVED_PATTERN = "/"
"""Over a component's colour: what its forward pass left for the backward pass."""

_SPARE = ("#b0653a", "#4d8076", "#a08bc0", "#d98c8c", "#6b7f2f")

PHASES = {"forward": "", "recompute": "/", "backward": "x", "other": "-"}
"""Pattern by phase, in the order in which a step runs them; the names are plotly's."""


def colour(component: str) -> str:
    """The colour of a component; one that has no fixed colour gets a spare one by its name."""
    if component in COLOURS:
        return COLOURS[component]
    return _SPARE[sum(component.encode("utf-8", "replace")) % len(_SPARE)]


def ink_on(background: str) -> str:
    """Black or white, whichever is read better on a colour (contrast by WCAG 2.2, 1.4.3)."""
    channels = [int(background[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def in_order(components: Iterable[str]) -> list[str]:
    """Components in the order of `COLOURS`; unknown ones by name before the striped ones."""
    places = {name: place for place, name in enumerate(COLOURS)}
    last_known = places["other"]
    return sorted(set(components), key=lambda name: (places.get(name, last_known + 0.5), name))
