"""Question: which questions, drawings and patterns are there?

The files of the three folders are the lists; a module is imported when its question is looked at.
So laws, patterns and hints, which those files need, may ask here what there is.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Sequence

from moeprof.analyzers.question import Drawing, Pattern, Question
from moeprof.errors import SelectionError
from moeprof.tables.law import Need

_QUESTIONS = "moeprof.analyzers.questions"
_DRAWINGS = "moeprof.analyzers.drawings"
_PATTERNS = "moeprof.analyzers.patterns"


def question(name: str) -> Question:
    """The question of this name.

    Raises:
        SelectionError: there is none.
    """
    if name not in _files(_QUESTIONS):
        raise _unknown([name])
    found: Question = importlib.import_module(f"{_QUESTIONS}.{name}").QUESTION
    return found


def drawing(name: str) -> Drawing:
    """The drawing of this name.

    Raises:
        SelectionError: there is none.
    """
    if name not in _files(_DRAWINGS):
        raise _unknown([name])
    found: Drawing = importlib.import_module(f"{_DRAWINGS}.{name}").DRAWING
    return found


def is_drawing(name: str) -> bool:
    """Whether a drawing has this name."""
    return name in _files(_DRAWINGS)


def is_question(name: str) -> bool:
    """Whether a question has this name."""
    return name in _files(_QUESTIONS)


def all_questions() -> tuple[Question, ...]:
    """Every question, by group and place: the order in which they are answered and listed."""
    return _questions(_files(_QUESTIONS))


def all_drawings() -> tuple[Drawing, ...]:
    """Every drawing, in the order of the questions that they stand beside."""
    at = {each.name: place for place, each in enumerate(all_questions())}
    found = map(drawing, _files(_DRAWINGS))
    return tuple(sorted(found, key=lambda each: (at[each.beside], each.place)))


def all_patterns() -> tuple[Pattern, ...]:
    """Every known pattern, in the order in which hints of equal gain are shown."""
    names = _files(_PATTERNS)
    modules = (importlib.import_module(f"{_PATTERNS}.{name}") for name in names)
    return tuple(sorted((module.PATTERN for module in modules), key=lambda each: each.place))


def all_names(*, is_drawn: bool = False) -> list[str]:
    """Names of all questions, with ``is_drawn`` those of the drawings behind them."""
    drawn = [each.name for each in all_drawings()] if is_drawn else []
    return [*(each.name for each in all_questions()), *drawn]


def in_order(names: Sequence[str]) -> list[str]:
    """`names` of questions and drawings in the order of their lists, each once.

    Raises:
        SelectionError: a name is neither's.
    """
    if unknown := [name for name in names if not (is_question(name) or is_drawing(name))]:
        raise _unknown(unknown)
    if len(set(names)) < 2:  # a single one is in order: no other module is imported
        return list(dict.fromkeys(names))
    return [name for name in all_names(is_drawn=True) if name in names]


def questions_that_need(needs: Iterable[Need]) -> list[str]:
    """Names of the questions that need any of `needs`, in order."""
    broken = frozenset(needs)
    return [each.name for each in all_questions() if each.needs & broken]


@functools.lru_cache
def _questions(names: tuple[str, ...]) -> tuple[Question, ...]:
    found = map(question, names)
    return tuple(sorted(found, key=lambda each: (each.group.place, each.place)))


def _files(package: str) -> tuple[str, ...]:
    """Names of the modules in a folder; packages hold what several of them share."""
    return _listed(tuple(importlib.import_module(package).__path__))


@functools.lru_cache
def _listed(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(found.name for found in pkgutil.iter_modules(path) if not found.ispkg))


def _unknown(names: Sequence[str]) -> SelectionError:
    known = ", ".join(all_names(is_drawn=True))
    return SelectionError(f"no question is named {', '.join(map(repr, names))}; there are: {known}")
