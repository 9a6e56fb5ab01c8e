"""Question: what does an assistant read of what changed between two runs?"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.analyzers.comparison.gates import parse_gate
from moeprof.assistant.answers import SCHEMA, rows_cuttable, table_of
from moeprof.assistant.fit import Cuttable, Tree, fitted
from moeprof.assistant.trusted import cuttable, trust_of_side
from moeprof.errors import SelectionError
from moeprof.reports.comparison.document import Changes, ComparisonDocument
from moeprof.session.comparison import Comparison

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
