"""Question: what runs in the process that compiles?

It is given a folder with ``request.json``; what the compiler lays out goes to the dump folder that
the request names, the reason why it could not to ``answer.json``.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ERROR_LETTERS = 2000
SHOWN_LETTERS = 300
PRINTED = "printed.txt"
"""In the folder of a script's process: what it wrote to its outputs."""


def main() -> None:
    """Compile what the request asks for."""
    folder = Path(sys.argv[1])
    error = _compile(json.loads((folder / "request.json").read_text("utf-8")))
    if error is not None:
        (folder / "answer.json").write_text(json.dumps(error), "utf-8")


def _compile(request: dict[str, Any]) -> dict[str, str] | None:
    """What went wrong, and where; None where nothing did."""
    from moeprof.projector.compiled import load_target
    from moeprof.projector.compiled.compiler import compile_step
    from moeprof.specs.hardware import load_hardware

    target = load_target(load_hardware(request["hardware"]), request["devices"])
    try:
        compile_step(
            _build(request["build"]),
            _options(request),
            target,
            Path(request["dump"]),
            tuple(request["donate"]),
            (request["ep_size"], request["ep_axis"]),
        )
    except Exception as error:  # of the user's code or the compiler: the parent says which
        text = _text(error).partition("\n-----")[0]
        return {"error": text[:ERROR_LETTERS], "at": _where(error)}
    return None


def _build(named: dict[str, str]) -> Any:
    """The function by module and name, or by the script that was run as ``__main__``."""
    if named["script"]:
        found: Any = runpy.run_path(named["script"], run_name="__moeprof_plan__")
        return found[named["name"]]
    return getattr(importlib.import_module(named["module"]), named["name"])


def _options(request: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments; those of the bundled model are read back into what they stand for."""
    if not request["is_bundled"]:
        return dict(request["options"])
    from moeprof.projector.compiled.bundled import read_options

    return read_options(request["options"])


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line, and where in the user's code."""
    at = _where(error)
    text = " ".join(_text(error).partition("\n-----")[0].split())
    return text[:SHOWN_LETTERS] + (f" (at {at})" if at else "")


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _where(error: BaseException) -> str:
    """Last line of the traceback that is neither JAX's nor ours."""
    jax = find_spec("jax")
    folders = [str(Path(__file__).parents[2]), *((jax and jax.submodule_search_locations) or ())]
    others = tuple(f"{folder}{os.sep}" for folder in folders)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(others)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


if __name__ == "__main__":
    main()
