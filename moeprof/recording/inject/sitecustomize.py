"""Question: how does capture get into the script's interpreter? Python imports this at start-up.

It takes every trace of itself back (path entry, variables, module), runs the sitecustomize that
the environment has of its own, and leaves import hooks. The script then starts as always.
"""

import importlib
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _take_back() -> None:
    """Restore sys.path and the environment, so that the script and its children see no change."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    original = os.environ.pop("MOEPROF_CAPTURE_PYTHONPATH", None)
    if original is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = original


def _run_own_sitecustomize() -> None:
    """Import the sitecustomize that this one hides."""
    hidden_by = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        sys.modules["sitecustomize"] = hidden_by  # the import system looks for it once more
        if error.name != "sitecustomize":
            raise


def _start_capture() -> None:
    """Hand over to moeprof, found beside this folder even where the script's path lacks it."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))
    is_missing = importlib.util.find_spec("moeprof") is None
    if is_missing:
        sys.path.append(root)
    from moeprof.recording.child import start

    start()


if "MOEPROF_CAPTURE_CONFIG" in os.environ:
    _take_back()
    _run_own_sitecustomize()
    _start_capture()
