"""Question: over which devices does a user spread a model, where not every degree is said?

The run has as many devices as the product of its degrees, unless --devices says how many; then a
degree of -1 takes what is left, or fsdp, or dp where fsdp is said.
"""

from __future__ import annotations

import math

from moeprof.cli.memory_options import RunOptions
from moeprof.errors import SpecError
from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.plan_checks import check_megatron_plan, check_plan
from moeprof.specs.remat import Remat

_FIELDS = {
    "dp": "data",
    "fsdp": "fsdp",
    "ep": "expert",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
}


def plan_of(
    options: RunOptions, model: ModelSpec, taken: list[str], said: list[str]
) -> ParallelPlan:
    """The plan, checked against the model; what was filled in is appended to what is said.

    Raises:
        SpecError: degrees do not fit each other, the devices or the model.
    """
    is_megatron = options.world == "megatron"
    given = {name: getattr(options, name) for name in _FIELDS}
    zero = next((name for name, degree in given.items() if degree == 0), None)
    if zero:
        raise SpecError(f"--{zero}: expected at least 1, or -1 for what is left, found 0.")
    open_names = [name for name, degree in given.items() if degree == -1]
    if len(open_names) > 1:
        raise SpecError(
            f"plan: only one degree may be -1, found {' and '.join(f'--{n}' for n in open_names)}."
        )
    if open_names and options.devices is None:
        raise SpecError(
            f"--{open_names[0]} -1 takes what is left of the devices: say how many with --devices."
        )
    known = {name: 1 if degree in (None, -1) else degree for name, degree in given.items()}
    if options.devices is not None:
        name = open_names[0] if open_names else _free(given, options)
        if name is not None:
            # In Megatron-LM experts lie inside the other degrees.
            factors = {n: d for n, d in known.items() if not (is_megatron and n == "ep")}
            known[name] = _left(name, factors, options.devices, bool(open_names))
            said.append(f"--{name} is {known[name]}: what is left of {options.devices} devices.")
    elif not any(given.values()):
        taken.append("1 device")
    plan = ParallelPlan(
        **{field: known[name] for name, field in _FIELDS.items()},
        expert_tensor=options.etp or 1,
        virtual=options.vpp or 1,
        remat=Remat(options.remat or "full"),
    )
    check = check_megatron_plan if is_megatron else check_plan
    check(plan, model, options.devices)
    return plan


def _free(given: dict[str, int | None], options: RunOptions) -> str | None:
    """The degree that is not said and takes what is left: fsdp, else dp; Megatron: dp."""
    order = ("dp",) if options.world == "megatron" else ("fsdp", "dp")
    return next((name for name in order if given[name] is None), None)


def _left(name: str, known: dict[str, int], devices: int, is_asked: bool) -> int:
    others = math.prod(degree for other, degree in known.items() if other != name)
    if devices % others == 0:
        return devices // others
    if not is_asked:
        return 1  # the check of the plan says what does not fit
    product = " × ".join(f"{n} {d}" for n, d in known.items() if n != name and d != 1)
    raise SpecError(f"--{name} -1: {devices} devices are not a multiple of {others} ({product}).")
