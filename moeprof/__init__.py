"""moeprof: where a Mixture-of-Experts training step in JAX goes, and why."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprof.recording.in_process import capture as capture

__version__ = "0.1.0"

_PLACES = {
    "capture": "moeprof.recording.in_process",
}
"""Where each function that users call lies: imported when it is asked for, as that takes time."""


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
