"""A script with names that mean nothing: same lines, same library calls, same truth comments.

Renamed are what the script itself defines (functions, classes, arguments, variables, fields), the
keywords that name its own arguments, and the strings that it uses as keys of dicts, or as names of
mesh axes, modules and their parameters. Kept are what others look for: ``build``, the constants of
the corpus, names of imports, double underscores, and methods and arguments that a library calls by
their name.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator

_KEPT = frozenset(
    {"build", "SIZES", "LARGE", "DEVICES", "NEEDS", "VARIANTS", "self", "cls", "setup", "params"}
    | {"name", "carry", "rngs", "kernel_init", "features", "dtype", "shape", "T", "at", "init"}
    | {"update", "apply", "mean", "sum", "reshape", "astype", "size", "axis", "set", "add", "key"}
)
_AXES = frozenset({"Mesh", "make_mesh", "PartitionSpec", "P", "AxisType"})
_DECOY = "abcdefghijklmnopqrstuvwxyz"


def renamed(text: str) -> str:
    """The script with its own names replaced, line by line where they were."""
    tree = ast.parse(text)
    names = _own_names(tree)
    keys = _keys(tree) | dict.fromkeys(sorted(_fields(tree)))
    new = {
        name: f"{_DECOY[n % 26]}{_DECOY[n // 26 % 26]}{n}" for n, name in enumerate(names | keys)
    }
    lines = [line.encode() for line in text.splitlines()]
    for row, start, old in sorted(set(_places(tree, lines, names, keys)), reverse=True):
        line = lines[row]
        lines[row] = line[:start] + new[old].encode() + line[start + len(old) :]
    return "\n".join(line.decode() for line in lines) + "\n"


def _is_of(node: ast.Attribute, fields: set[str], imported: set[str]) -> bool:
    """Whether an attribute is one of the script's own, of no library."""
    root: ast.expr = node.value
    while isinstance(root, ast.Attribute):
        root = root.value
    return node.attr in fields and getattr(root, "id", "") not in imported


def _fields(tree: ast.Module) -> set[str]:
    """Fields and methods of the script's classes, whose calls name some as keywords."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for node in classes:
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                found.add(part.name)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                found.add(part.target.id)
    names = {node.name for node in classes}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in names:
            found |= {each.arg for each in call.keywords if each.arg}
    return {name for name in found if not name.startswith("__") and name not in _KEPT}


def _imported(tree: ast.Module) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _own_names(tree: ast.Module) -> dict[str, None]:
    """What the script binds, in order; without what it imports and what others look for."""
    imported = _imported(tree)
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.arg):
            found[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found[node.attr] = None
    return {name: None for name in found if _is_own(name, imported)}


def _is_own(name: str, imported: set[str]) -> bool:
    is_known = (
        name in _KEPT or name in imported or keyword.iskeyword(name) or hasattr(builtins, name)
    )
    return not is_known and not name.startswith("__")


def _keys(tree: ast.Module) -> dict[str, None]:
    """Strings that are keys of dicts, or names of axes; those of `SIZES` are options, no names."""
    found: dict[str, None] = {}
    for node in _walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in _AXES:
                parts = [each for argument in node.args for each in ast.walk(argument)]
            if called == "dict":
                found |= dict.fromkeys(k.arg for k in node.keywords if k.arg)
            if called == "param":
                parts = list(node.args[:1])
            for each in node.keywords:
                if each.arg in ("data_fields", "meta_fields", "name"):
                    parts += ast.walk(each.value)
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found[part.value] = None
    return {key: None for key in found if key.isidentifier() and key not in _KEPT}


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those of the corpus' own constants and what is read from them."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        target = getattr(node, "targets", [None])[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            target = node.value
        if isinstance(target, ast.Name) and target.id in ("SIZES", "LARGE", "VARIANTS", "NEEDS"):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _places(
    tree: ast.Module, lines: list[bytes], names: dict[str, None], keys: dict[str, None]
) -> Iterator[tuple[int, int, str]]:
    """(row, column, name) of everything to replace, counted from 0."""
    fields = _fields(tree)
    imported = _imported(tree)
    for node in _walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            yield node.lineno - 1, node.col_offset, node.id
        elif isinstance(node, ast.arg) and node.arg in names:
            yield node.lineno - 1, node.col_offset, node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            row = node.lineno - 1
            yield row, lines[row].index(node.name.encode(), node.col_offset + 4), node.name
        elif isinstance(node, ast.Attribute) and _is_of(node, fields, imported):
            start = (node.end_col_offset or 0) - len(node.attr)
            yield (node.end_lineno or 0) - 1, start, node.attr
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called == "partial" and node.args:
                called = getattr(node.args[0], "id", "")
            is_own = called in names or called in ("replace", "_replace")
            wanted = keys if called == "dict" else {**names, **keys} if is_own else {}
            for each in node.keywords:
                if each.arg in wanted:
                    yield each.lineno - 1, each.col_offset, each.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in keys:
            text = lines[node.lineno - 1]
            if re.match(rb"[\"'][A-Za-z_]", text[node.col_offset :]):
                yield node.lineno - 1, node.col_offset + 1, node.value
        elif isinstance(node, ast.Global | ast.Nonlocal):
            raise ValueError("a script of the corpus has no global or nonlocal names")
