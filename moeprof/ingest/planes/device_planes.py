"""Question: which device does a plane of a profile, or a process of a JSON trace, belong to?

Both have the same names.
"""

from __future__ import annotations

import re

IMPOSSIBLE_DEVICE = "events of an impossible device number"

# An ordinal of ten digits is of no device: the name is damaged.
_GPU = re.compile(r"^/device:GPU:(\d{1,9})(?!\d)")
_TPU = re.compile(r"^/device:TPU:(\d{1,9})(?: SparseCore \d+)?$")
_IMPOSSIBLE = re.compile(r"^/device:[GT]PU:\d{10}")


def gpu_ordinal(name: str) -> int | None:
    """The GPU that a plane of this name belongs to, or None for any other."""
    found = _GPU.match(name)
    return int(found.group(1)) if found else None


def tpu_ordinal(name: str) -> int | None:
    """The TPU that a plane of this name belongs to, or None for any other."""
    found = _TPU.match(name)
    return int(found.group(1)) if found else None


def has_impossible_ordinal(name: str) -> bool:
    """Whether the name is that of a device that cannot be."""
    return _IMPOSSIBLE.match(name) is not None
