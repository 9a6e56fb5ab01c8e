"""Question: how is a list of live tensors written down, and how does it become rows?

An account lists, for each moment that may be the fullest, which tensors are alive: a shape in the
symbols of `extent`, how many of them, and the evidence for that number. Sizes are never listed.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.projector.accounts.extent import Extent
from moeprof.projector.breakdown import Confidence, Row
from moeprof.projector.rows import product_row
from moeprof.projector.setting import Setting
from moeprof.projector.state import gradient_dtype
from moeprof.specs import DTYPE_BYTES


@dataclass(frozen=True)
class Live:
    """``count`` tensors of a shape: ``N d`` or, with a format other than compute's, ``T V:f32``.

    Formats: ``f32``, ``i32``, ``u8``, and ``w``, ``g``, ``l`` for those of weights, gradients and
    logits. A count may be a half where two tensors are alive for a part of the moment each.
    """

    what: str
    shape: str
    count: float
    evidence: str
    confidence: Confidence = "medium"
    kind: str = "temporaries"

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dimensions."""
        return tuple(self.shape.partition(":")[0].split())

    @property
    def is_routed(self) -> bool:
        """Whether the tensor grows with the rows that a rank receives."""
        return "N" in self.symbols


def live_row(live: Live, extent: Extent, setting: Setting, times: float = 1) -> Row:
    """The row of a list's entry; ``times`` multiplies its count."""
    return product_row(
        live.what,
        live.count * times,
        {symbol: extent[symbol] for symbol in live.symbols},
        item_bytes(live.shape.partition(":")[2], setting),
        kind=live.kind,
        source=live.evidence,
        confidence=live.confidence,
        is_routed=live.is_routed,
    )


def item_bytes(suffix: str, setting: Setting) -> int:
    """Bytes of an element in the format that a shape's suffix names; none: compute's."""
    fixed = {"f32": 4, "i32": 4, "u8": 1}
    if suffix in fixed:
        return fixed[suffix]
    precision = setting.precision
    named = {
        "": precision.compute,
        "w": precision.weights,
        "g": gradient_dtype(setting),
        "l": precision.logits,
    }
    return DTYPE_BYTES[named[suffix]]
