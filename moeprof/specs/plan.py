"""Question: over which devices is a model spread?

Mesh axes, outermost first: ``data`` (weights replicated), ``fsdp`` (weights split, gathered per
layer), ``expert`` (experts split; other weights are split over it too). The batch is split over all
three, so every device of `AXES` holds its own sequences.

The bundled model has these alone. A projection knows three more: ``tensor`` splits heads and
feed-forward widths, ``context`` splits a sequence, ``pipeline`` splits the layers. Whether a plan
fits a model is asked in `moeprof.specs.plan_checks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeprof.errors import PlanError, SpecError
from moeprof.specs import check_numbers
from moeprof.specs.model import divisors
from moeprof.specs.remat import FULL, Remat

AXES = ("data", "fsdp", "expert")
ALL_AXES = (*AXES, "tensor", "context", "pipeline")
# In Megatron-LM experts are spread inside these, and make no axis of their own.
MEGATRON_AXES = ("data", "fsdp", "tensor", "context", "pipeline")
SHORT = {
    "dp": "data",
    "fsdp": "fsdp",
    "ep": "expert",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "vpp": "virtual",
    "etp": "expert_tensor",
}
"""What the field calls each degree of a `ParallelPlan`, and options do → its name."""


@dataclass(frozen=True)
class ParallelPlan:
    """Degrees of parallelism, and what the backward pass recomputes.

    ``expert_tensor`` is how many devices of ``tensor`` split the width of an expert; with 1 each
    holds whole experts. ``virtual`` counts the chunks of layers of a pipeline stage.
    """

    data: int = 1
    fsdp: int = 1
    expert: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert_tensor: int = 1
    virtual: int = 1
    remat: Remat = FULL

    def __post_init__(self) -> None:
        """Check that each degree is a positive number."""
        check_numbers("plan", self)
        if self.tensor % self.expert_tensor:
            raise SpecError(
                f"plan: expert_tensor {self.expert_tensor} does not divide tensor {self.tensor}. "
                f"Choose it from {', '.join(map(str, divisors(self.tensor)))}."
            )

    @property
    def devices(self) -> int:
        """Devices that the plan needs: the product of the degrees of `ALL_AXES`."""
        return self.degree(ALL_AXES)

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Degree of each of `AXES`."""
        return (self.data, self.fsdp, self.expert)

    def degree(self, axes: tuple[str, ...]) -> int:
        """Product of the degrees of some axes."""
        product = 1
        for axis in axes:
            product *= int(getattr(self, axis))
        return product


def fill_plan(
    devices: int,
    *,
    data: int = 1,
    fsdp: int = 1,
    expert: int = 1,
    tensor: int = 1,
    context: int = 1,
    pipeline: int = 1,
    expert_tensor: int = 1,
    virtual: int = 1,
    remat: Remat | None = None,
    axes: tuple[str, ...] = ALL_AXES,
) -> ParallelPlan:
    """A plan for `devices` devices in which at most one degree is -1: "whatever is left".

    ``axes`` are those whose product is the devices: `ALL_AXES`, or `MEGATRON_AXES`, where experts
    lie inside the others.

    Raises:
        PlanError: two degrees are -1, one that is none of ``axes``, or the given ones do not
            divide `devices`.
    """
    given = {
        "data": data,
        "fsdp": fsdp,
        "expert": expert,
        "tensor": tensor,
        "context": context,
        "pipeline": pipeline,
    }
    unknown = [axis for axis, degree in given.items() if degree == -1]
    if len(unknown) > 1:
        raise PlanError(f"plan: only one degree may be -1, found {' and '.join(unknown)}.")
    if unknown:
        (axis,) = unknown
        if axis not in axes:
            raise PlanError(
                f"plan {axis} -1: experts are spread inside the other axes there, so nothing is "
                "left over for them. Give the degree."
            )
        given[axis] = _rest(devices, axis, {name: given[name] for name in axes})
    return ParallelPlan(**given, expert_tensor=expert_tensor, virtual=virtual, remat=remat or FULL)


def _rest(devices: int, axis: str, given: dict[str, int]) -> int:
    """What the other degrees leave of the devices for ``axis``."""
    others = {name: degree for name, degree in given.items() if name != axis}
    known = math.prod(others.values())
    if known < 1 or devices % known:
        # Degrees of 1 that nobody gave say nothing.
        named = {name: n for name, n in others.items() if n != 1} or others
        raise PlanError(
            f"plan {axis} -1: {devices} devices are not a multiple of {known}, the product "
            f"of {' and '.join(f'{name} {n}' for name, n in named.items())}."
        )
    return devices // known
