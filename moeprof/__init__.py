"""moeprof: where a Mixture-of-Experts training step in JAX goes, and why.

Example:
    >>> run = moeprof.load("runs/base")
    >>> run.hints()
    >>> run.breakdown().table
    >>> moeprof.compare(run, "runs/new").step
    >>> moeprof.memory("deepseek_v3", hardware="mi355x", ep=8, fsdp=8).largest_pdbs
    >>> moeprof.plan(train_step, state, batch, hardware="h100_sxm", mesh={"fsdp": 64}).fits
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprof import routing as routing
    from moeprof.errors import MoeprofError as MoeprofError
    from moeprof.projector.any_step.ask import plan as plan
    from moeprof.projector.any_step.result import StepPlan as StepPlan
    from moeprof.recording.in_process import capture as capture
    from moeprof.session.answer import Answer as Answer
    from moeprof.session.comparison import Comparison as Comparison
    from moeprof.session.comparison import compare as compare
    from moeprof.session.planning import MemoryPlan as MemoryPlan
    from moeprof.session.planning import PlanSearch as PlanSearch
    from moeprof.session.planning import memory as memory
    from moeprof.session.planning import search as search
    from moeprof.session.run import Run as Run
    from moeprof.session.run import load as load

__version__ = "0.1.0"

_PLACES = {
    "Answer": "moeprof.session.answer",
    "Comparison": "moeprof.session.comparison",
    "MemoryPlan": "moeprof.session.planning",
    "MoeprofError": "moeprof.errors",
    "PlanSearch": "moeprof.session.planning",
    "Run": "moeprof.session.run",
    "StepPlan": "moeprof.projector.any_step.result",
    "capture": "moeprof.recording.in_process",
    "compare": "moeprof.session.comparison",
    "load": "moeprof.session.run",
    "memory": "moeprof.session.planning",
    "plan": "moeprof.projector.any_step.ask",
    "routing": "moeprof.routing",
    "search": "moeprof.session.planning",
}
"""Where each function that users call lies: imported when it is asked for, as that takes time."""


if not TYPE_CHECKING:  # else a misspelled name would have a type

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_PLACES[name])
        return module if name == "routing" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
