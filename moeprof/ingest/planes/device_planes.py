"""Question: which device does a plane of a profile belong to?"""

from __future__ import annotations

import re

from moeprof.ingest.xspace.space import PlaneHead

IMPOSSIBLE_DEVICE = "events of an impossible device number"

# An ordinal of ten digits is of no device: the name is damaged.
_GPU = re.compile(r"^/device:GPU:(\d{1,9})(?!\d)")
_TPU = re.compile(r"^/device:TPU:(\d{1,9})(?: SparseCore \d+)?$")
_IMPOSSIBLE = re.compile(r"^/device:[GT]PU:\d{10}")


def gpu_ordinal(plane: PlaneHead) -> int | None:
    """The GPU that a plane belongs to, or None for any other plane."""
    found = _GPU.match(plane.name)
    return int(found.group(1)) if found else None


def tpu_ordinal(plane: PlaneHead) -> int | None:
    """The TPU that a plane belongs to, or None for any other plane."""
    found = _TPU.match(plane.name)
    return int(found.group(1)) if found else None


def has_impossible_ordinal(plane: PlaneHead) -> bool:
    """Whether a plane is named after a device that cannot be."""
    return _IMPOSSIBLE.match(plane.name) is not None
