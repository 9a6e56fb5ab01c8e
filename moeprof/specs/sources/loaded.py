"""Question: what came of reading a model, and what was assumed or left out on the way?"""

from __future__ import annotations

from dataclasses import dataclass, field

from moeprof.specs.model import ModelSpec


@dataclass(frozen=True)
class LoadedModel:
    """A model, where it is from, and what its reader has to say.

    ``origin`` is a preset's key or a path. ``notes`` are sentences on what was assumed, taken for
    something, or ignored. ``options`` is what the source says beyond the model, under the source's
    own names (``per_device_batch_size``, ``remat_policy``, ``torch_dtype``, …), unchecked.
    """

    model: ModelSpec
    origin: str
    notes: tuple[str, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
