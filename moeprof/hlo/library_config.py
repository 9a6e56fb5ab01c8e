"""What the configuration of a library's call says: the JSON that XLA hands to its backend.

Messages are those of xla/service/gpu/backend_configs.proto.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from moeprof.hlo.attributes import DotDims

_SIDES = DotDims._fields[:4]


@functools.lru_cache(maxsize=1 << 12)
def gemm_config(config: str) -> Mapping[str, Any] | None:
    """GemmBackendConfig of a product; None where it is another one, or cut."""
    try:
        found = json.loads(config)
        inner = found.get("gemm_backend_config", found)
        return inner if "dot_dimension_numbers" in inner else None
    except (ValueError, TypeError, AttributeError):
        return None


@functools.lru_cache(maxsize=1 << 12)
def dot_dims(config: str) -> DotDims | None:
    """Dimensions of the operands of a product; None where it has none."""
    product = gemm_config(config)
    if product is None:
        return None
    try:
        numbers = product["dot_dimension_numbers"]
        return DotDims(*(tuple(map(int, numbers.get(f"{s}_dimensions", ()))) for s in _SIDES))
    except (ValueError, TypeError, AttributeError):
        return None
