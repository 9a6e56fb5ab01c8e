"""Published models of all families: widths under the keys of a config.json, and parameters."""

from __future__ import annotations

from .hf_other_families import OTHERS
from .hf_shared_experts import WITH_SHARED

FAMILIES = {**WITH_SHARED, **OTHERS}
