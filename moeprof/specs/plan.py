"""Question: over which devices is a model spread, and does it fit them evenly?

Mesh axes, outermost first: ``data`` (weights replicated), ``fsdp`` (weights split, gathered per
layer), ``expert`` (experts split; other weights are split over it too). The batch is split over all
three, so every device of `AXES` holds its own sequences.

The bundled model has these alone. A projection knows three more: ``tensor`` splits heads and
feed-forward widths, ``context`` splits a sequence, ``pipeline`` splits the layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeprof.errors import SpecError
from moeprof.specs.fields import check_numbers
from moeprof.specs.model import ModelSpec, divisors
from moeprof.specs.remat import FULL, Remat

AXES = ("data", "fsdp", "expert")
ALL_AXES = (*AXES, "tensor", "context", "pipeline")


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
    devices: int, *, data: int = 1, fsdp: int = 1, expert: int = 1, remat: Remat | None = None
) -> ParallelPlan:
    """A plan for `devices` devices in which at most one degree is -1: "whatever is left".

    Raises:
        SpecError: two degrees are -1, or the given ones do not divide `devices`.
    """
    given = {"data": data, "fsdp": fsdp, "expert": expert}
    unknown = [axis for axis, degree in given.items() if degree == -1]
    if len(unknown) > 1:
        raise SpecError(f"plan: only one degree may be -1, found {' and '.join(unknown)}.")
    known = math.prod(degree for degree in given.values() if degree != -1)
    if unknown and (known < 1 or devices % known):
        raise SpecError(
            f"plan {unknown[0]} -1: {devices} devices are not a multiple of {known}, the product "
            f"of {' and '.join(f'{axis} {n}' for axis, n in given.items() if n != -1)}."
        )

    def fill(degree: int) -> int:
        return devices // known if degree == -1 else degree

    return ParallelPlan(fill(data), fill(fsdp), fill(expert), remat=remat or FULL)


def check_plan(plan: ParallelPlan, model: ModelSpec, devices: int) -> None:
    """Check a plan against a model and the devices there are.

    Raises:
        SpecError: all complaints at once, each with both numbers and the valid choices.
    """
    complaints = []
    fitting = [d for d in divisors(model.experts) if devices % d == 0]
    if model.experts % plan.expert:
        complaints.append(
            f"{model.experts} experts cannot be split evenly over expert {plan.expert}; "
            f"valid on {devices} devices: {', '.join(map(str, fitting))}"
        )
    if plan.devices != devices:
        complaints.append(
            f"plan needs {' × '.join(map(str, plan.degrees))} = {plan.devices} devices "
            f"({' × '.join(AXES)}) but there are {devices}" + _suggest(plan, devices)
        )
    if complaints:
        raise SpecError("; ".join(complaints) + ".")


def _suggest(plan: ParallelPlan, devices: int) -> str:
    others = plan.devices // plan.fsdp
    if devices % others == 0:
        return f"; set fsdp to {devices // others}"
    return f"; expert must divide {devices}: {', '.join(map(str, divisors(devices)))}"
