"""Question: how is a module of this package run in a process of its own?

`python -m` looks for it in the current folder first: in a checkout of moeprof, or beside a folder
of that name, another package than the one that asks would answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

_CODE = (
    "import sys; sys.path.insert(0, {root!r}); import moeprof; del sys.path[0]; "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this very package, wherever it is started."""
    root = str(Path(__file__).absolute().parents[1])
    return [sys.executable, "-c", _CODE.format(root=root, module=module), *arguments]
