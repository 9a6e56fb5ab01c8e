"""`moeprof memory --compile`: the compiler's own plan of a cell, beside the closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moeprof.cli.memory_options import RunOptions
from moeprof.cli.progress import working
from moeprof.errors import SelectionError

if TYPE_CHECKING:
    from moeprof.projector.setting import Setting
    from moeprof.reports.memory.document import CompiledInfo

BUNDLED = "bundled"


def of_bundled(options: RunOptions) -> RunOptions:
    """The options with the bundled model's world: its step is what is compiled.

    Raises:
        SelectionError: another world is asked for.
    """
    if options.world not in (None, BUNDLED):
        raise SelectionError(
            f"--compile: compiles the bundled model's step, so expected --world {BUNDLED}, found "
            f"{options.world!r}. Another program is compiled by moeprof.projector.compiled.plan."
        )
    return replace(options, world=BUNDLED)


def compiled(setting: Setting) -> CompiledInfo:
    """Compile the step of a setting for its hardware, which need not be there.

    Raises:
        MoeprofError: the compiler is not installed, cannot be had for the hardware, or fails.
    """
    from moeprof.projector.compiled.bundled import compile_bundled
    from moeprof.reports.memory.document import compiled_info

    with working("compiling the step"):
        return compiled_info(compile_bundled(setting))
