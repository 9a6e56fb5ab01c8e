"""Question: which share of a component's forward work is done again in the backward pass?

A product is done again unless its result was kept, on the device or in the host's memory. With
flash attention the core needs its result kept (``context``) as well as its inputs. ``selective``
does again what its modules hold and nothing else. What is outside the layers (the head) is done
again only where its loss is tiled, since each tile's logits are made again for their gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.specs.remat import Remat

_KEEPERS: Mapping[str, tuple[str, ...]] = {
    "query": ("query_proj",),
    "key and value": ("key_proj", "value_proj"),
    "attention output": ("out_proj",),
    "attention core": ("context",),
    "feed-forward in": ("mlpwi_0", "mlpwi_1"),
    "feed-forward out": ("mlpwo",),
}
"""Part of a layer -> names that spare its recomputation if all of them are kept."""
_MODULES: Mapping[str, frozenset[str]] = {
    "core_attn": frozenset({"attention core"}),
    "mla_up_proj": frozenset({"query", "key and value"}),
    "moe_act": frozenset({"activation"}),
    "mlp": frozenset({"dense feed-forward"}),
    "moe": frozenset({"router", "routed experts", "shared expert", "permute", "exchange"}),
    "layernorm": frozenset({"norms"}),
    "shared_experts": frozenset({"shared expert"}),
}
"""Module of Megatron-LM -> parts and components that it does again."""


def recomputed(remat: Remat, part: str, component: str = "") -> float:
    """1 where a part of a layer is done again, else 0; ``component`` is what it belongs to."""
    if remat.text == "none":
        return 0.0
    if remat.recomputed_modules:
        again = frozenset[str]().union(*(_MODULES[name] for name in remat.recomputed_modules))
        return float(part in again or component in again)
    kept = {*remat.saved_names, *remat.offloaded_names}
    names = _KEEPERS.get(part)
    return float(names is None or not kept.issuperset(names))
