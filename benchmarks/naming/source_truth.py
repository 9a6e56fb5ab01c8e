"""What the author of a program says of its lines: which components an op of a line may have.

In a script of the corpus the truth of a line is a comment at its end, ``# is: router`` or
``# is: permute|router`` where both are right. A function without any such comment is a helper: its
ops are what the line that calls it is. In a function with some, a line without one says nothing (a
loop's line, say), and the line that calls the function does not speak for it. Elsewhere it is a
JSON file of

    {"files": {SUFFIX: {"lines": {"26": [...]}, "functions": {"permute": [...]}}},
     "op_names": [[PART, [...]], ...]}

in which a line beats the function that it stands in, and the first part that occurs in an op_name
beats both. A file with ``file`` and ``lines`` at the top is of one script.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from moeprof.analyzers.classify.components import MEANINGS

_COMMENT = re.compile(r"#\s*is:\s*([\w|]+)\s*$")

Components = frozenset[str]
NONE: Components = frozenset()


@dataclass(frozen=True)
class FileTruth:
    """Of one file: components by line, and by function for its other lines."""

    lines: Mapping[int, Components] = field(default_factory=dict)
    functions: Mapping[str, Components] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    """Lines without a truth in functions that have some."""


@dataclass(frozen=True)
class SourceTruth:
    """``files`` by the end of their path; ``op_names`` in order, the first match counts."""

    files: Mapping[str, FileTruth]
    op_names: Sequence[tuple[str, Components]] = ()

    def of(self, op_name: str, frames: str) -> Components:
        """Components of an op by its name and frames (``file:line:function``, innermost first).

        The innermost line that has a truth decides, unless one further in is silent.
        """
        for part, components in self.op_names:
            if part in op_name:
                return components
        for frame in frames.splitlines():
            place, _, function = frame.rpartition(":")
            name, _, line = place.rpartition(":")
            for suffix, known in self.files.items():
                if name.endswith(suffix):
                    found = known.lines.get(int(line)) or known.functions.get(function)
                    if found or int(line) in known.silent:
                        return found or NONE
        return NONE

    def line_of(self, frames: str) -> str:
        """``file:line`` of the innermost frame in a file that this is of; empty without one."""
        for frame in frames.splitlines():
            place = frame.rpartition(":")[0]
            name, _, line = place.rpartition(":")
            if any(name.endswith(suffix) for suffix in self.files):
                return f"{Path(name).name}:{line}"
        return ""


def of_script(path: Path, text: str | None = None) -> SourceTruth:
    """Read the comments of a script.

    Raises:
        ValueError: a comment names something that is no component, or stands in a statement of
            several lines: its ops would have other lines.
    """
    text = text or path.read_text("utf-8")
    lines = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _COMMENT.search(line):
            lines[number] = _components(found[1].split("|"), f"{path}:{number}")
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            long = range(node.lineno, (node.end_lineno or 0) + 1)
            if len(long) > 1 and lines.keys() & set(long):
                raise ValueError(f"{path}:{node.lineno}: a truth in a statement of several lines")
    return SourceTruth({f"/{path.name}": FileTruth(lines, silent=_silent(tree, lines.keys()))})


def _silent(tree: ast.AST, told: Set[int]) -> frozenset[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            nested = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
            own = set(_lines(node)).difference(*map(_lines, nested))
            if own & told:
                found |= own - told
    return frozenset(found)


def _lines(node: ast.FunctionDef) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def of_json(path: Path) -> SourceTruth:
    """Read a file of truths.

    Raises:
        ValueError: it names something that is no component.
    """
    told = json.loads(path.read_text("utf-8"))
    files = told["files"] if "files" in told else {told["file"]: {"lines": told["lines"]}}
    return SourceTruth(
        {
            suffix: FileTruth(
                {int(n): _components(c, f"{path}: {n}") for n, c in each.get("lines", {}).items()},
                {n: _components(c, f"{path}: {n}") for n, c in each.get("functions", {}).items()},
            )
            for suffix, each in files.items()
        },
        [(part, _components(c, f"{path}: {part}")) for part, c in told.get("op_names", [])],
    )


def untold(text: str) -> str:
    """A script without its truth, line by line."""
    return "\n".join(_COMMENT.sub("", line).rstrip() for line in text.splitlines())


def _components(names: Sequence[str], where: str) -> Components:
    unknown = set(names) - MEANINGS.keys()
    if unknown:
        raise ValueError(f"{where}: expected components, found {', '.join(sorted(unknown))}")
    return frozenset(names)
