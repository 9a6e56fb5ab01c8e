"""``--names``: the user's file of rules that name parts of the step, read and checked.

A list of rules in YAML, each with a component and conditions, all of which must hold::

    - component: grouped_gemm
      source: layers/moe.py:40-58
    - component: router
      scope: block/(gate|switch)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import click

from moeprof.errors import SpecError
from moeprof.tables.name_rule import NameRule, NameRules

_Function = TypeVar("_Function", bound=Callable[..., object])
_KEYS = tuple(field.name for field in fields(NameRule))
_WHAT = "a YAML list of rules"
_EXAMPLE = "Write as - {component: router, function: gate}"


def names_parts(command: _Function) -> _Function:
    """Add ``--names``; it arrives as ``names``, `NameRules` or None where it is not given."""
    return click.option(
        "--names",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=lambda _ctx, _param, path: None if path is None else read_names(path),
        help="Rules that name parts of the step before all else: a YAML list, each with a "
        "component, and scope, function, source or op.",
    )(command)


def read_names(path: Path) -> NameRules:
    """The rules of a file.

    Raises:
        SpecError: it cannot be read, is no list of rules, or a rule cannot be used.
    """
    from moeprof.analyzers.classify.rules import require_usable

    found = _document(path)
    if not isinstance(found, list) or not found:
        empty = found is None or found == []
        kind = "none" if empty else f"a {type(found).__name__}"
        raise SpecError(f"{path}: expected {_WHAT}, found {kind}. {_EXAMPLE}.")
    rules = tuple(_rule(path, number, item) for number, item in enumerate(found, 1))
    require_usable(rules, str(path))
    return NameRules(str(path), rules)


def _document(path: Path) -> object:
    import yaml

    from moeprof.specs.sources.text_file import read_text

    text = read_text(path, _WHAT)
    try:
        return yaml.load(text, _loader())
    except RecursionError:
        raise SpecError(f"{path}: expected {_WHAT}, found one nested too deep.") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"{path}: expected {_WHAT}, found damage ({reason[:200]}).") from None


def _loader() -> type:
    """YAML's safe loader that refuses a key given twice: one condition would be dropped."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(
            self, node: yaml.MappingNode, deep: bool = False
        ) -> dict[Hashable, object]:
            keys = [key.value for key, _ in node.value]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {twice} twice", node.start_mark
                )
            return super().construct_mapping(node, deep)

    return Loader


def _rule(path: Path, number: int, item: object) -> NameRule:
    where = f"{path}: rule {number}"
    if not isinstance(item, dict):
        raise SpecError(f"{where}: expected keys and values, found {item!r:.80}. {_EXAMPLE}.")
    for key, value in item.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1) or [", ".join(_KEYS)]
            raise SpecError(f"{where}: expected {near[0]}, found the key {key!r}. Correct the key.")
        if not isinstance(value, str) or not value:
            raise SpecError(f"{where}: {key}: expected a text, found {value!r:.80}. Put it in ''.")
    if "component" not in item:
        raise SpecError(f"{where}: expected the key component, found none. {_EXAMPLE}.")
    return NameRule(**item)
