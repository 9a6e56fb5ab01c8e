"""Question: how do a run, an answer and a trust record look in a notebook's cell?"""

from __future__ import annotations

from moeprof.answers.document import Document, Drawing, Finding, drawn_column, is_unrecorded
from moeprof.answers.names import printable
from moeprof.answers.story import count_of, metric_name
from moeprof.answers.values import written
from moeprof.reports.parts.phrases import described_trust, title, troubles
from moeprof.reports.parts.templating import fragment
from moeprof.reports.parts.views import finding_table, read_first
from moeprof.reports.run.sentences import sentence
from moeprof.reports.run.terminal import overview

_FEW_ROWS = 12


def run_cell(document: Document) -> str:
    """The first screen of a run, as text of one width."""
    return text_cell(overview(document).plain)


def answer_cell(document: Document, name: str) -> str:
    """The answer to one question: its sentence, its figures, the first rows, its notes."""
    if name in document["drawings"]:
        return _picture_cell(document["drawings"][name], name)
    finding = document["analyses"][name]
    few: Finding = {**read_first(name, finding), "rows": finding["rows"][:_FEW_ROWS]}
    table = finding_table(few, name, title(name))
    left = len(finding["rows"]) - len(few["rows"])
    return fragment(
        "cell.html",
        heading=title(name),
        said=_NOTHING if is_unrecorded(document) else sentence(document, name),
        text="",
        facts=_facts(finding),
        columns=table.columns if table.rows else (),
        rows=table.rows,
        left_out=count_of(left) if left else "",
        notes=[printable(note) for note in finding["notes"]],
    )


_NOTHING = "No profile was recorded, so there is no figure."


def trust_cell(document: Document) -> str:
    """The verdict of a trust record, and each law that failed or warns."""
    notes = [f"{law['check']}: {law['verdict']}: {law['detail']}" for law in troubles(document)]
    return _cell(heading="Trust", said=described_trust(document), notes=notes)


def text_cell(text: str) -> str:
    """Text as a terminal shows it."""
    return _cell(text=text)


def _picture_cell(drawing: Drawing, name: str) -> str:
    rows = max((len(drawn_column(drawing, each)) for each in drawing["data"]), default=0)
    said = f"A picture of {count_of(rows)}; .table has them."
    return _cell(heading=name, said=said, notes=drawing["notes"])


def _facts(finding: Finding) -> list[tuple[str, str]]:
    known = (metric for metric in finding["headline"] if metric["value"] is not None)
    return [(metric_name(metric), written(metric["value"], metric["unit"])) for metric in known]


def _cell(heading: str = "", said: str = "", text: str = "", notes: list[str] | None = None) -> str:
    shown = [printable(note) for note in notes or ()]
    return fragment(
        "cell.html", heading=heading, said=said, text=text, facts=(), columns=(), rows=(),
        left_out="", notes=shown,
    )  # fmt: skip
