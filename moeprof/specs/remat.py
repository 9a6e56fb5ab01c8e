"""Question: what does the backward pass recompute, and what was kept for it?"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SpecError

# Activations that can be kept. The layer input is always kept.
NAMES = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")


@dataclass(frozen=True)
class Remat:
    """``none`` keeps every activation, ``full`` only layer inputs, ``save:a,b`` those and a, b."""

    text: str

    def __post_init__(self) -> None:
        """Check the text."""
        if self.text in ("none", "full"):
            return
        kind, _, names = self.text.partition(":")
        unknown = [name for name in names.split(",") if name not in NAMES]
        if kind != "save" or unknown:
            raise SpecError(
                f"remat: expected none, full or save:NAME,… found {self.text!r}. "
                f"Names that can be saved: {', '.join(NAMES)}."
            )

    @property
    def saved_names(self) -> tuple[str, ...]:
        """Activations kept besides the layer input; empty for ``none`` and ``full``."""
        _, _, names = self.text.partition(":")
        return tuple(names.split(",")) if names else ()


FULL = Remat("full")
