"""Question: what does an assistant read of a run, of one question, of what changed between two?

Every answer is a tree of plain values of at most `LIMIT` bytes, with the trust record and what was
cut. A figure that a law withholds is null. Units stand beside figures and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moeprof.analyzers.comparison.gates import parse_gate
from moeprof.analyzers.registry import all_patterns, all_questions, is_question, question
from moeprof.answers import story
from moeprof.answers.document import NO_FINDING, ColumnInfo, Document, Finding, TrustInfo, Value
from moeprof.assistant.fit import Cuttable, Tree, fitted
from moeprof.assistant.place import OpenRun
from moeprof.errors import SelectionError
from moeprof.reports.comparison.document import Changes, ComparisonDocument, SideInfo
from moeprof.reports.parts.phrases import described_trust, troubles, withheld_by, worst_verdict
from moeprof.reports.run import words
from moeprof.reports.run.document import column_info
from moeprof.reports.run.sentences import sentence
from moeprof.session.comparison import Comparison

# How far the figures of an answer can be trusted, in a few lines that stand in it.

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


# The answers.

SCHEMA = "moeprof.assistant/1"
_PARTS: list[ColumnInfo] = [
    {"name": "component", "unit": "", "meaning": "part of the model or of the step"},
    {"name": "op_time", "unit": "ns", "meaning": "time of its ops; several may run at once"},
    {"name": "share", "unit": "share", "meaning": "of the op time of all parts"},
]


def questions() -> Tree:
    """What a run can be asked, and the patterns that `hints` looks for."""
    answer = {
        "schema": SCHEMA,
        "questions": [
            {"name": each.name, "group": each.group.value, "asks": each.asks}
            for each in all_questions()
        ],
        "patterns": [{"name": each.name, "what": each.title} for each in all_patterns()],
    }
    return fitted(
        answer, [Cuttable(("patterns",), "patterns", lambda _: "the notes of hints name all")]
    )


def meaning_of(name: str) -> Tree:
    """What a question asks and what each column of its answer holds; or what a pattern is.

    Raises:
        SelectionError: there is no question and no pattern of this name.
    """
    pattern = next((each for each in all_patterns() if each.name == name), None)
    if pattern is not None:
        told = {"pattern": name, "what": pattern.title, "more": "a hint of a run has the evidence"}
        return fitted({"schema": SCHEMA, **told}, [])
    _check_question(name, also="; or a pattern that `questions` lists")
    found = question(name)
    return fitted(
        {
            "schema": SCHEMA,
            "question": name,
            "title": found.title,
            "group": found.group.value,
            "asks": found.asks,
            "columns": columns_of(list(map(column_info, found.schema.columns))),
        },
        [Cuttable(("columns",), "columns", lambda _: "docs/tables.md has all")],
    )


def overview(opened: OpenRun) -> Tree:
    """The first screen of a run: what it is, trust, the step, its parts, findings, answers."""
    document = opened.document()
    step = document["analyses"].get("step_time", NO_FINDING)
    hints = document["analyses"].get("hints", NO_FINDING)
    answer: Tree = {
        "schema": SCHEMA,
        "run": _run(document),
        "trust": trust_of(document),
        "step": {"says": story.described_step(document), "figures": list(step["headline"])},
        "largest_parts": {
            "says": story.described_parts(document) or words.unknown_parts(document),
            "columns": _PARTS,
            "rows": [
                {"component": part.component, "op_time": part.duration_ns, "share": part.share}
                for part in story.parts(document)
            ],
        },
        "findings": table_of(hints["columns"], hints["rows"]),
        "answers": [
            {"question": name, "says": sentence(document, name)} for name in document["analyses"]
        ],
    }
    return fitted(answer, _lists_of_overview())


def asked(opened: OpenRun, name: str, most: int, skip: int, columns: Sequence[str]) -> Tree:
    """The answer to one question: a sentence, its figures, and rows `skip` on of its table.

    Raises:
        SelectionError: there is no such question, or its table has no such column.
    """
    _check_question(name)
    document = opened.document(name)
    finding = document["analyses"][name]
    shown = chosen_columns(finding["columns"], columns)
    answer: Tree = {
        "schema": SCHEMA,
        "run": {"path": document["run"]["path"], "is": words.described_run(document)},
        "question": name,
        "asks": finding["question"],
        "says": sentence(document, name),
        "status": finding.get("status", "ok"),
        "times_are": story.PER[finding.get("basis", "step")],
        "trust": trust_of(document),
        "figures": list(finding["headline"]),
        "table": table_of(shown, finding["rows"][skip : skip + most]),
        "notes": list(finding["notes"]),
    }
    rows = rows_cuttable(("table", "rows"), f"table of {name}", skip, len(finding["rows"]))
    figures = Cuttable(("figures",), "figures", lambda _: "the table has the rest", keep=8)
    notes = Cuttable(("notes",), "notes", _printed, keep=2)
    return fitted(answer, [rows, figures, notes, *cuttable("trust")])


def _lists_of_overview() -> list[Cuttable]:
    def ask(name: str) -> Cuttable:
        at = {"breakdown": "largest_parts", "hints": "findings"}[name]
        return Cuttable((at, "rows"), at.replace("_", " "), lambda _: f"ask {name}", keep=4)

    return [
        ask("breakdown"),
        Cuttable(("run", "notes"), "notes on the run", _printed, keep=2),
        Cuttable(("run", "problems"), "problems of the run", _printed, keep=2),
        ask("hints"),
        Cuttable(("answers",), "answers", lambda _: "ask the question itself", keep=4),
        Cuttable(("step", "figures"), "figures of the step", lambda _: "ask step_time", keep=6),
        *cuttable("trust"),
    ]


def _printed(_: int) -> str:
    return "`moeprof analyze RUN` prints all"


def rows_cuttable(
    at: tuple[str, ...], what: str, skip: int, of: int, *, table: str = ""
) -> Cuttable:
    """Rows of a table from `skip` on, of `of` in all; told is how to get the next."""

    def more(end: int) -> str:
        same = f"table={table}, " if table else ""
        return f"the same with {same}skip={end} has the next"

    return Cuttable(at, f"{what}, rows", more, keep=3, first=min(skip, of), of=of)


def table_of(columns: Sequence[ColumnInfo], rows: Sequence[Mapping[str, Value]]) -> Tree:
    """The columns with their units and meanings, and the rows with these columns."""
    names = [*(column["name"] for column in columns), "withheld"]
    return {
        "columns": columns_of(columns),
        "rows": [{name: row[name] for name in names if name in row} for row in rows],
    }


def columns_of(columns: Sequence[ColumnInfo]) -> list[dict[str, Any]]:
    """Names, units and meanings; the law where one withholds a column."""
    return [{key: value for key, value in column.items() if key != "heading"} for column in columns]


def chosen_columns(columns: Sequence[ColumnInfo], names: Sequence[str]) -> list[ColumnInfo]:
    """The columns of these names; all where none is named.

    Raises:
        SelectionError: there is none of a name.
    """
    known = [column["name"] for column in columns]
    if unknown := [name for name in names if name not in known]:
        raise SelectionError(
            f"columns: no column is named {', '.join(map(repr, unknown))}; there are: "
            f"{', '.join(known)}"
        )
    return [column for column in columns if not names or column["name"] in names]


def _check_question(name: str, also: str = "") -> None:
    if not is_question(name):
        known = ", ".join(each.name for each in all_questions())
        raise SelectionError(f"no question is named {name!r}; there are: {known}{also}")


def _run(document: Document) -> Tree:
    run = document["run"]
    record = run.get("record")
    command = record["command"] if record else None
    return {
        "path": run["path"],
        "is": words.described_run(document),
        **({"command": command} if command else {}),
        "problems": words.problems(document),
        "notes": [*run["notes"], *filter(None, [words.of_cores(document)])],
    }


TABLES = ("step", "rows", "memory", "buffers", "settings")
"""Tables of a comparison, in the order of what is read first."""
_CUT_FIRST = ("rows", "buffers", "settings", "memory", "step")


def compared(
    comparison: Comparison, gates: Sequence[str], table: str, most: int, skip: int
) -> Tree:
    """The changes from base to new, `most` rows of each table; or rows `skip` on of one table.

    Raises:
        SelectionError: rows are skipped and no table is named.
        SpecError: a gate has another form, or names no figure.
    """
    if skip and not table:
        raise SelectionError(f"skip: say of which table, as table=rows; there are {_listed()}")
    document = comparison.document([parse_gate(gate) for gate in gates])
    tables = _tables(document)
    shown = [name for name in TABLES if table in ("", name)]
    answer: Tree = {
        "schema": SCHEMA,
        "base": document["base"]["run"]["path"],
        "new": document["new"]["run"]["path"],
        "is_whole": comparison.is_whole,
        "trust_of_base": trust_of_side(document["base"]),
        "trust_of_new": trust_of_side(document["new"]),
        "noise": dict(document["noise"]),
        "gates": [dict(gate) for gate in document["gates"]],
        "tables": {
            name: table_of(tables[name]["columns"], tables[name]["rows"][skip : skip + most])
            for name in shown
        },
        "notes": list(document["notes"]),
    }
    counts = {name: len(tables[name]["rows"]) for name in shown}
    return fitted(answer, _lists(counts, skip))


def _tables(document: ComparisonDocument) -> dict[str, Changes]:
    return {
        "step": document["step"],
        "rows": document["rows"],
        "memory": document["memory"],
        "buffers": document["buffers"],
        "settings": document["settings"],
    }


def _lists(counts: dict[str, int], skip: int) -> list[Cuttable]:
    rows = [
        rows_cuttable(("tables", name, "rows"), f"table {name}", skip, counts[name], table=name)
        for name in _CUT_FIRST
        if name in counts
    ]
    more = "`moeprof compare BASE NEW` prints all"
    return [
        *rows,
        Cuttable(("notes",), "notes", lambda _: more, keep=3),
        *cuttable("trust_of_base"),
        *cuttable("trust_of_new"),
        Cuttable(("gates",), "gates", lambda _: "ask again with fewer", keep=10),
    ]


def _listed() -> str:
    return ", ".join(TABLES)
