"""Question: which share of a component's forward work is done again in the backward pass?

A product is done again unless its result was kept. With flash attention the core needs its result
kept (``context``) as well as its inputs. What is outside the layers (the head) is done again only
where its loss is tiled, since each tile's logits are made again for their gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.specs.remat import Remat

_KEEPERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "query": (("query_proj",), ("qkv_proj",)),
    "key and value": (("key_proj", "value_proj"), ("qkv_proj",)),
    "attention output": (("out_proj",),),
    "attention core": (("context",),),
    "feed-forward in": (("mlpwi_0", "mlpwi_1"), ("mlpwi",)),
    "feed-forward out": (("mlpwo",),),
}
"""Part of a layer -> sets of names, any of which, if all are kept, spares its recomputation."""


def recomputed(remat: Remat, part: str) -> float:
    """1 where a part of a layer is done again, else 0; ``part`` may be one that is never kept."""
    if remat.text == "none":
        return 0.0
    kept = set(remat.saved_names)
    return 0.0 if any(kept.issuperset(names) for names in _KEEPERS.get(part, ())) else 1.0
