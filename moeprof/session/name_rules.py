"""Question: by which rules of the user are parts of the step named?

A file of rules is read and checked: a list in YAML, each with a component and conditions, all of
which must hold::

    - component: grouped_gemm
      source: layers/moe.py:40-58
    - component: router
      scope: block/(gate|switch)
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import yaml

from moeprof.analyzers.classify.rules import fault_of
from moeprof.errors import SpecError, one_line
from moeprof.specs.sources.document import read_text
from moeprof.tables.name_rule import NameRule, NameRules

_KEYS = tuple(field.name for field in fields(NameRule))
_WHAT = "a YAML list of rules"
_EXAMPLE = "Write as - {component: router, function: gate}"
_MOST_FAULTS = 5


class Fault(NamedTuple):
    """What is wrong with a rule, and what to do."""

    found: str
    advice: str


def read_names(path: Path) -> NameRules:
    """The rules of a file.

    Raises:
        SpecError: it cannot be read, is no list of rules, or rules cannot be used: the first few.
    """
    found = _document(path)
    if not isinstance(found, list) or not found:
        raise SpecError(f"{path}: expected {_WHAT}, found {_kind(found)}. {_EXAMPLE}.")
    faults = [
        Fault(f"rule {number}: {fault.found}", fault.advice)
        for number, item in enumerate(found, 1)
        for fault in _faults(item)
    ]
    if faults:
        raise SpecError(f"{path}: {_told(faults)}")
    return NameRules(str(path), tuple(NameRule(**item) for item in found))


def _told(faults: Sequence[Fault]) -> str:
    """All faults of a file in one line, where there are not too many."""
    if len(faults) == 1:
        return f"{faults[0].found}. {faults[0].advice}."
    shown = "; ".join(fault.found for fault in faults[:_MOST_FAULTS])
    more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
    advices = dict.fromkeys(fault.advice for fault in faults[:_MOST_FAULTS])
    return f"{shown}{more}. {'. '.join(advices)}."


def _kind(found: object) -> str:
    """What a file holds that is no list of rules."""
    if not found:
        return "none"
    return "keys and values without a list" if isinstance(found, dict) else _shown(found)


def _document(path: Path) -> object:
    text = read_text(path, _WHAT)
    try:
        return yaml.load(text, _loader())
    except RecursionError:
        raise SpecError(f"{path}: expected {_WHAT}, found one nested too deep.") from None
    except yaml.MarkedYAMLError as error:
        raise SpecError(f"{path}: expected {_WHAT}, found {_damage(error)}.") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = one_line(error)[:200]
        raise SpecError(f"{path}: expected {_WHAT}, found damage ({reason}).") from None


def _damage(error: yaml.MarkedYAMLError) -> str:
    """Where a file is no YAML, in words of the file rather than of its parser."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or ""
    where = f"damage in line {mark.line + 1}, column {mark.column + 1}" if mark else "damage"
    if problem.startswith("key "):
        return f"{where}: {problem}"
    if "unhashable" in problem:
        return f"{where}: a key that is no text"
    if "constructor for the tag" in problem:
        return f"{where}: a tag (!…), which rules have none of"
    if "another document" in problem:
        return f"{where}: a second document; write all rules in one list"
    if "undefined alias" in problem:
        return f"{where}: a text that begins with *; put it in ''"
    return f"{where}: look at indentation, quotes and brackets; put a text with such signs in ''"


def _loader() -> type:
    """YAML's safe loader that refuses a key given twice: one condition would be dropped."""

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


def _faults(item: object) -> Iterator[Fault]:
    """What is wrong with a rule of the file; nothing where it can be used."""
    if not isinstance(item, dict):
        yield Fault(f"expected keys and values, found {_shown(item)}", _EXAMPLE)
        return
    good = {}
    for key, value in item.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1) or [", ".join(_KEYS)]
            yield Fault(f"expected {near[0]}, found the key {_shown(key)}", "Correct the key")
        elif not isinstance(value, str) or not value:
            yield Fault(f"{key}: expected a text, found {_shown(value)}", _advice(key, value))
        else:
            good[key] = value
    if "component" not in item:
        yield Fault("expected the key component, found none", _EXAMPLE)
    elif len(good) == len(item) and (fault := fault_of(NameRule(**good))):
        yield Fault(fault, "Correct the rule")


def _advice(key: str, value: object) -> str:
    """What to write in the place of what is no text."""
    if isinstance(value, list | dict):
        return "Write one rule per component" if key == "component" else "Write one rule for each"
    if value is None or value == "":
        return "Give a text, or leave the key out"
    return "Put it in ''" if key != "component" else "Give the name of a component"


def _shown(value: object) -> str:
    """A value as the file has it, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes or true" if value else "no or false"
    if isinstance(value, str | list | dict):
        return reprlib.repr(value)[:80]
    return str(value)[:80]
