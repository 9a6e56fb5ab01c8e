"""Question: how far can the figures of an answer be trusted, in a few lines that stand in it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moeprof.answers.document import Document, Finding, TrustInfo
from moeprof.assistant.fit import Cuttable, Tree
from moeprof.reports.comparison.document import SideInfo
from moeprof.reports.parts.phrases import described_trust, troubles, withheld_by, worst_verdict

_KEYS = ("host", "device", "step", "op", "rank")


def trust_of(document: Document) -> Tree:
    """The verdict in words, the laws that failed or warn, and the figures withheld for it.

    `document` holds the findings that the answer shows; figures that are withheld are null there.
    """
    figures = [
        figure
        for name, finding in document["analyses"].items()
        for figure in _withheld(document, name, finding)
    ]
    return _record(document) | {"withheld_figures": figures}


def trust_of_side(side: SideInfo) -> Tree:
    """The same of one of two compared runs: the figures of its questions that laws withhold.

    What is computed from these is not compared.
    """
    document: Document = {"schema": "", **side, "analyses": {}, "drawings": {}}
    figures = [text for law in troubles(document) for text in _by_law(law)]
    return _record(document) | {"withheld_figures": figures}


def cuttable(at: str) -> list[Cuttable]:
    """The lists of a trust record that stands at this key; they are cut last."""
    name = at.replace("_", " ")
    return [
        Cuttable((at, "withheld_figures"), f"{name}, withheld figures", _by_question, keep=10),
        Cuttable((at, "failed_or_warned"), f"{name}, laws", _by_command, keep=5),
    ]


def _record(document: Document) -> Tree:
    return {
        "verdict": described_trust(document),
        "worst": worst_verdict(document),
        "failed_or_warned": [_line(law) for law in troubles(document)],
    }


def _by_question(_: int) -> str:
    return "ask each question for its own"


def _by_command(_: int) -> str:
    return "`moeprof analyze RUN` prints all"


def _line(law: TrustInfo) -> str:
    return f"{law['verdict']} {law['check']}: {law['detail']}"


def _withheld(document: Document, name: str, finding: Finding) -> Iterator[str]:
    """Figures of one finding that are null because of a law."""
    if laws := withheld_by(document, name):
        yield f"{name}: all figures (by {', '.join(laws)})"
        return
    for metric in finding["headline"]:
        if law := metric.get("withheld"):
            yield f"{name}: {metric['metric']} (by {law})"
    for column in finding["columns"]:
        if law := column.get("withheld"):
            yield f"{name}: column {column['name']} (by {law})"
    for row in finding["rows"]:
        if by := row.get("withheld"):
            yield f"{name}: row of {_keys(row)} (by {by})"


def _by_law(law: TrustInfo) -> Iterator[str]:
    for name in law["withholds"]:
        yield f"{name}: all figures (by {law['check']})"
    for scope in law["scopes"]:
        figures = ", ".join(scope["figures"]) or "all figures"
        where = _keys(scope)
        of = f" of {where}" if where else ""
        yield f"{scope['question']}: {figures}{of} (by {law['check']})"


def _keys(row: Mapping[str, object]) -> str:
    """``host a, device 3``: which row it is."""
    keys: Sequence[str] = [key for key in _KEYS if row.get(key) is not None]
    return ", ".join(f"{key} {row[key]}" for key in keys)
