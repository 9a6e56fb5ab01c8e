"""Question: which options has a world none of?

An option that changes nothing is refused, so that nobody takes an answer for one about it. What a
model's configuration says, and the program does not have, is left out without a complaint.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeprof.errors import SpecError

_WORLDS = {
    "sequence_parallel": ("megatron",),
    "vocab_tiling": ("maxtext",),
    "fused_loss": ("maxtext", "megatron"),
    "ragged_buffer_factor": ("maxtext",),
    "mem_fraction": ("maxtext", "bundled"),  # PyTorch's allocator takes what others leave
    "sync_free": ("megatron",),  # a JAX program has static shapes and never waits
    "overlap": ("megatron",),  # MaxText's stages run one program, in GPipe's order
    "grad_dtype": ("maxtext", "megatron"),  # the bundled model's are those of its weights
}


def check_world(given: Mapping[str, object], world: str) -> None:
    """Refuse options, by name, that a world has none of; None: not given.

    Raises:
        SpecError: one is given.
    """
    for name, worlds in _WORLDS.items():
        if world in worlds or given.get(name) is None:
            continue
        raise SpecError(
            f"--{name.replace('_', '-')}: world {world} does not have it. "
            f"Leave it out, or give --world {' or '.join(worlds)}."
        )
