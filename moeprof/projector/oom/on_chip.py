"""Failures of memory on the chip: shared memory (LDS), tensor memory, VMEM and SMEM.

A kernel asks for more of it than a core has, whatever else lies in the device's memory.
"""

from __future__ import annotations

import re

from moeprof.projector.oom.message import COMPILE, SHARED, TENSOR
from moeprof.projector.oom.sizes import SIZE, size_bytes

_CHEAP = re.compile(
    r"(?i)shared (?:mem|data)|tensor memory|local memory \(|would exceed|vmem|smem|sflag|cmem"
)
_COUNT = r"(?:0x[0-9a-f]+|\d+)"
_FORMS = (
    # Triton; where it names tensor memory it counts columns
    re.compile(
        rf"out of resource: (?P<space>shared|tensor) memory, Required: (?P<need>{_COUNT}), "
        rf"Hardware limit: (?P<of>{_COUNT})"
    ),
    # XLA's own Triton kernels and Pallas on GPUs
    re.compile(
        rf"(?P<space>Shared) memory size limit exceeded(?:: requested (?P<need>{_COUNT}), "
        rf"available: (?P<of>{_COUNT}))?"
    ),
    re.compile(r"(?P<space>Shared) memory requested exceeds device resources"),
    # Mosaic GPU
    re.compile(
        r"exceeds available (?P<space>shared) memory:? (?:smem_bytes=)?"
        rf"(?P<need>{_COUNT}) > (?:max_smem_bytes=)?(?P<of>{_COUNT})"
    ),
    # ptxas, and LLVM for AMD
    re.compile(
        rf"uses too much (?P<space>shared) data \((?P<need>{_COUNT}) bytes, (?P<of>{_COUNT}) max\)"
    ),
    re.compile(
        rf"(?P<space>local) memory \((?P<need>{_COUNT})\) exceeds limit \((?P<of>{_COUNT})\)"
    ),
    # TPU's compiler
    re.compile(
        rf"Scoped allocation with size (?P<need>{SIZE}) and limit (?P<of>{SIZE}) exceeded scoped "
        r"(?P<space>\w+) limit"
    ),
    re.compile(
        r"Allocation \(size=(?P<need>\d+)\) would exceed memory \(size=(?P<of>\d+)\)"
        r".*?\bspace=(?P<space>\w+)"
    ),
    re.compile(
        rf"Ran out of memory in memory space (?P<space>vmem|smem|sflag|cmem)\b"
        rf"(?:\.? Used (?P<need>{SIZE}) of (?P<of>{SIZE}))?"
    ),
)
_SPACES = {"shared": SHARED, "local": SHARED, "tensor": TENSOR}


def told_on_chip(text: str) -> dict[str, object] | None:
    """Fields of a `Failure` where a line says that a kernel needs too much; None where not."""
    if not _CHEAP.search(text):
        return None
    for pattern in _FORMS:
        if found := pattern.search(text):
            sizes = found.groupdict()
            space = _SPACES.get(sizes["space"].lower(), sizes["space"].lower())
            is_columns = space == TENSOR
            return {
                "kind": COMPILE,
                "who": "the compiler",
                "space": space,
                "needed_bytes": None if is_columns else _bytes(sizes.get("need")),
                "capacity_bytes": None if is_columns else _bytes(sizes.get("of")),
            }
    return None


def _bytes(text: str | None) -> int | None:
    """A size, or a plain number of bytes, in hexadecimal too."""
    if text is None:
        return None
    is_plain = re.fullmatch(_COUNT, text) is not None
    return int(text, 0) if is_plain else size_bytes(text)
