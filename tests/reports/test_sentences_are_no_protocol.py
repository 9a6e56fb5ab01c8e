"""Figures, order, exit codes and what is shown depend on values: every sentence may be "x"."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moeprof.analyzers import analyze
from moeprof.analyzers.question import Hint
from moeprof.analyzers.registry import all_questions
from moeprof.answers.document import Document
from moeprof.cli.findings import is_partial
from moeprof.ingest import open_run
from moeprof.reports.run.document import build
from moeprof.reports.run.page import page_view
from moeprof.tables.analysis import Analysis
from moeprof.tables.law import Law
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.trace import with_names

GPU = Path(__file__).parents[1] / "data" / "gpu"
RULES = NameRules("rules.yml", (NameRule("router", scope="attention"),))
X = "x"


def blank(text: str) -> str:
    return X if text else ""


def without_words(cls: type, *fields: str) -> Any:
    """The `__init__` of a dataclass that takes every sentence for "x"."""
    init = cls.__init__

    @functools.wraps(init)
    def made(self: object, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        for name in fields:
            value = getattr(self, name)
            blanked = tuple(map(blank, value)) if isinstance(value, tuple) else blank(value)
            object.__setattr__(self, name, blanked)

    return made


@contextmanager
def every_sentence_is_x(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sentences = {each: each.sentence for each in all_questions()}
    with monkeypatch.context() as patched:
        patched.setattr(Analysis, "__init__", without_words(Analysis, "notes", "why"))
        patched.setattr(Law, "__init__", without_words(Law, "detail"))
        patched.setattr(Hint, "__init__", without_words(Hint, "evidence", "change"))
        for each in sentences:
            object.__setattr__(each, "sentence", lambda _: X)
        try:
            yield
        finally:
            for each, sentence in sentences.items():
                object.__setattr__(each, "sentence", sentence)


def answered(path: Path) -> Document:
    trace = with_names(open_run(path), RULES)
    return build(trace, analyze(trace, is_drawn=True))


def blanked(document: Document) -> dict[str, Any]:
    """A document whose sentences are "x"; its figures, names and order as they are."""
    found = json.loads(json.dumps(document))
    for law in found["trust"]:
        law["detail"] = X
    for answer in [*found["analyses"].values(), *found["drawings"].values()]:
        answer["notes"] = [X] * len(answer["notes"])
        if "why" in answer:
            answer["why"] = X
    for row in found["analyses"]["hints"]["rows"]:
        row |= {"evidence": X, "change": X}
    return found


def cut(tmp_path: Path) -> Path:
    """A capture whose file ends in its middle: laws fail, figures are withheld."""
    (source,) = (GPU / "sparse-gmm").rglob("*p0.xplane.pb*")
    damaged = tmp_path / source.name
    data = source.read_bytes()
    damaged.write_bytes(data[: len(data) // 2])
    return damaged


@pytest.fixture(params=["sparse-gmm", "cut"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return cut(tmp_path) if request.param == "cut" else GPU / request.param


def shown(document: Document) -> list[object]:
    """What a page shows of a document, in its order, without words."""
    (run,) = page_view([document]).runs
    sections = [
        (
            *(group.title, section.id, section.title, section.metrics, section.unknown),
            *(len(section.figures), section.is_empty, bool(section.notes), section.table),
        )
        for group in run.groups
        for section in group.sections
        if section.id != "hints"
    ]
    findings = run.findings
    named = [(each.key, each.title, each.saved) for each in findings.first] if findings else []
    return [*sections, run.step, [part.name for part in run.segments], named]


def test_every_sentence_may_be_x(path, monkeypatch):
    usual = answered(path)
    with every_sentence_is_x(monkeypatch):
        other = answered(path)
        page = shown(other)
    assert blanked(other) == blanked(usual)
    assert list(other["analyses"]) == list(usual["analyses"])
    assert is_partial(other) == is_partial(usual)
    assert page == shown(usual)
