"""Question: what memory does a compiled program say it needs, if it says so, and which memory?

Some backends answer with zeros everywhere, some lack the attribute (jax.stages.Compiled.
memory_analysis). A program without any argument, result and temporary does nothing, so zeros mean
"not reported", and never that it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeprof.columns.table import Frame

NOT_REPORTED = "not reported by this backend"
_ENDING = "_size_in_bytes"
_PARTS = ("argument", "output", "alias", "temp")


@dataclass(frozen=True)
class CompiledMemory:
    """Bytes of one execution on one device; None throughout where the backend reports none.

    ``total_bytes`` = argument + output + temp − alias, as XLA's CompiledMemoryStats counts.
    ``more`` are the other sizes that it states, by name (``host_temp_bytes``).
    """

    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None
    generated_code_bytes: int | None = None
    more: tuple[tuple[str, int], ...] = ()

    @property
    def is_reported(self) -> bool:
        """Whether the backend states sizes."""
        return self.argument_bytes is not None

    @property
    def total_bytes(self) -> int | None:
        """What one execution holds; None where it is not reported."""
        argument, output = self.argument_bytes, self.output_bytes
        temp, alias = self.temp_bytes, self.alias_bytes
        if argument is None or output is None or temp is None or alias is None:
            return None
        return argument + output + temp - alias

    def as_record(self) -> dict[str, object]:
        """As ``RUN/memory/p<k>.json`` keeps it: sizes by name, or None and why."""
        names = [*_PARTS, "generated_code"]
        sizes = {f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names}
        return {**sizes, **dict(self.more)} if self.is_reported else {**sizes, "note": NOT_REPORTED}


def compiled_memory(stats: object) -> CompiledMemory:
    """Read JAX's ``CompiledMemoryStats``, or a record of `as_record`; None says nothing."""
    sizes = _sizes(stats)
    parts = [sizes.get(f"{name}_bytes") for name in _PARTS]
    if any(part is None for part in parts) or not any(parts):
        return CompiledMemory()
    known = {f"{name}_bytes": sizes.pop(f"{name}_bytes") for name in _PARTS}
    code = sizes.pop("generated_code_bytes", None)
    return CompiledMemory(**known, generated_code_bytes=code, more=tuple(sorted(sizes.items())))


def _sizes(stats: object) -> dict[str, int]:
    """Sizes by name, ``_size_in_bytes`` as ``_bytes``; what is no whole number is left out."""
    if isinstance(stats, Mapping):
        told = {str(name): value for name, value in stats.items()}
    else:
        told = {name: getattr(stats, name, None) for name in dir(stats) if name.endswith(_ENDING)}
    return {
        name.replace(_ENDING, "_bytes"): value
        for name, value in told.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }


# Which memory a buffer of a compiled program lies in: the device's own, or the host's.
#
# XLA numbers memory spaces in a layout, ``f32[8]{0:S(5)}``, and colors an allocation by that
# number (xla/layout.h). 5 is the host's memory on every backend. All other numbers are parts of
# the device: on GPUs 1 is memory that collectives share, which is taken from the same pool. XLA's
# CompiledMemoryStats tells device and host apart in the same way.

HOST = 5


def on_device(buffers: Frame) -> Frame:
    """Rows of `BUFFERS`, a table or a frame, that lie in the device's memory."""
    found: Frame = buffers[buffers["color"] != HOST]
    return found
